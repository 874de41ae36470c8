//! Meetings of ranks that are threads, by both ways.

use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use super::answer::{PAUSE, all_there, answer};
use super::tcp::connect;
use super::*;

fn ranks(size: u32, meet: &str) -> Vec<Ranks> {
    let of = |rank| Ranks {
        rank,
        size,
        local_rank: rank,
        meet: meet.to_owned(),
    };
    (0..size).map(of).collect()
}

fn all(ranks: &[Ranks], patience: Duration) -> Vec<Result<Vec<u8>>> {
    std::thread::scope(|scope| {
        let each = |ranks| scope.spawn(move || meet(ranks, patience, || Ok(vec![7; 128])));
        let threads: Vec<_> = ranks.iter().map(each).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

/// A port on which nothing listens, and a file that does not exist.
fn places(folder: &Path) -> [String; 2] {
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    [
        format!("tcp://{free}"),
        format!("file://{}", folder.join("meet").display()),
    ]
}

#[test]
fn ranks_that_meet_have_what_rank_0_made() {
    let folder = tempfile::tempdir().unwrap();
    for place in places(folder.path()) {
        for met in all(&ranks(5, &place), Duration::from_secs(20)) {
            assert_eq!(met.unwrap(), [7; 128], "{place}");
        }
    }
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        0,
        "files are left"
    );
}

#[test]
fn a_rank_that_does_not_come_is_named_by_every_other() {
    let folder = tempfile::tempdir().unwrap();
    for place in places(folder.path()) {
        let mut some = ranks(4, &place);
        some.remove(2);
        for met in all(&some, Duration::from_millis(300)) {
            let error = met.unwrap_err().to_string();
            assert!(error.contains("ranks [2] of 4"), "{place}: {error}");
        }
    }
}

#[test]
fn of_a_job_told_to_be_too_large_the_error_names_some_ranks_and_comes_soon() {
    let folder = tempfile::tempdir().unwrap();
    for place in places(folder.path()) {
        let first = Ranks {
            size: u32::MAX,
            ..ranks(1, &place).remove(0)
        };
        let began = Instant::now();
        let met = meet(&first, Duration::from_millis(50), || Ok(Vec::new()));
        let (error, took) = (met.unwrap_err().to_string(), began.elapsed());
        assert!(error.contains("ranks [1, 2, 3"), "{:.100}", error);
        assert!(error.contains("and more of 4294967295"), "{:.100}", error);
        assert!(took < Duration::from_secs(30), "{took:?}");
    }
}

#[test]
fn a_rank_that_comes_during_the_last_look_is_there_or_is_named() {
    let looks = std::cell::Cell::new(0);
    let comes = |rank| {
        looks.set(looks.get() + 1);
        rank != 1 || looks.get() > 1
    };
    let words = all_there(&ranks(3, "file:///meet")[0], comes).unwrap_err();
    assert!(words.to_string().contains("ranks [1] of 3"), "{words}");
}

#[test]
fn what_others_remove_takes_nobody_s_answer_away() {
    let folder = tempfile::tempdir().unwrap();
    let [_, place] = places(folder.path());
    let ranks = ranks(2, &place);
    let [path, sign] = ["meet", "meet.1"].map(|name| folder.path().join(name));
    let patience = Duration::from_secs(20);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| meet(&ranks[0], patience, || Ok(vec![7; 128])));
        fs::write(&sign, []).unwrap();
        while !path.exists() {
            std::thread::sleep(PAUSE);
        }
        fs::remove_file(&path).unwrap();
        fs::remove_file(&sign).unwrap();
        assert_eq!(first.join().unwrap().unwrap(), [7; 128]);
        let second = scope.spawn(|| meet(&ranks[1], patience, || Ok(Vec::new())));
        while fs::remove_file(&sign).is_err() {
            std::thread::sleep(PAUSE);
        }
        // At once, as rank 0 does: the second rank reads the file as soon as it is there.
        let made = folder.path().join("made");
        fs::write(&made, answer(&Ok(vec![8]))).unwrap();
        fs::rename(&made, &path).unwrap();
        assert_eq!(second.join().unwrap().unwrap(), [8]);
    });
}

#[test]
fn a_rank_0_that_does_not_come_is_an_error_that_says_where_it_was_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    for place in places(folder.path()) {
        let met = all(&ranks(2, &place)[1..], Duration::from_millis(50));
        let error = met.into_iter().next().unwrap().unwrap_err().to_string();
        assert!(
            error.contains("rank 0") && error.contains(&place),
            "{error}"
        );
    }
}

/// Like a firewall that drops packets: the system itself would try for minutes.
#[test]
fn a_rank_0_that_answers_nothing_is_waited_for_no_longer_than_the_time_given() {
    use std::os::fd::AsRawFd;

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // SAFETY: an open socket. Its queue has space for one connection, and nothing accepts it.
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
    let address = listener.local_addr().unwrap();
    let brief = Duration::from_millis(100);
    let connect = || TcpStream::connect_timeout(&address, brief);
    let taken: Vec<_> = (0..8).map_while(|_| connect().ok()).collect();
    if taken.len() == 8 {
        return println!("skipped: this system has room for more connections");
    }
    let began = Instant::now();
    let place = format!("tcp://{address}");
    let met = meet(&ranks(2, &place)[1], 3 * brief, || Ok(Vec::new()));
    let words = met.unwrap_err().to_string();
    assert!(words.contains("rank 0 is not at"), "{words}");
    assert!(began.elapsed() < Duration::from_secs(20));
}

/// While nothing listens on a port, the system may choose it as the source port of a connection to itself.
#[test]
fn a_rank_that_calls_before_rank_0_listens_does_not_reach_itself() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    // The system takes source ports of the other parity than the ports that it assigns to
    // listeners.
    let port = free.local_addr().unwrap().port() ^ 1;
    let address = format!("127.0.0.1:{port}");
    if TcpListener::bind(&address).is_err() {
        return println!("skipped: somebody listens at {address}");
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    let reached = (0..30_000).find_map(|_| connect(&address, deadline).ok());
    assert!(reached.is_none(), "{reached:?}");
}

#[test]
fn a_rank_that_comes_late_has_the_answer_though_one_of_an_earlier_job_left_its_sign() {
    let folder = tempfile::tempdir().unwrap();
    let [_, place] = places(folder.path());
    let ranks = ranks(2, &place);
    fs::write(folder.path().join("meet.1"), []).unwrap();
    let meet = |rank| meet(rank, Duration::from_secs(10), || Ok(vec![7; 128]));
    std::thread::scope(|scope| {
        let first = scope.spawn(|| meet(&ranks[0]));
        std::thread::sleep(Duration::from_secs(3));
        assert_eq!(meet(&ranks[1]).unwrap(), [7; 128]);
        assert_eq!(first.join().unwrap().unwrap(), [7; 128]);
    });
}

#[test]
fn a_file_that_is_no_answer_is_refused_and_not_read_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let [_, place] = places(folder.path());
    let ranks = ranks(2, &place);
    let path = folder.path().join("meet");
    // A part of an answer, and what is longer than it says.
    for (words, bytes) in [
        (&[1, 8, 0, 0, 0][..], 9),
        (&[1, 8, 0, 0, 0], 1 << 20),
        (&[], 0),
        (&[1], 1 << 28),
    ] {
        fs::write(&path, words).unwrap();
        fs::File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(bytes)
            .unwrap();
        let met = meet(&ranks[1], Duration::from_secs(5), || Ok(Vec::new()));
        let error = met.map(|bytes| bytes.len()).unwrap_err().to_string();
        assert!(error.contains("holds no answer"), "{error}");
    }
}

#[test]
fn a_rank_whose_connection_is_reset_asks_again() {
    let folder = tempfile::tempdir().unwrap();
    let [place, _] = places(folder.path());
    let ranks = ranks(2, &place);
    let before = TcpListener::bind(place.strip_prefix("tcp://").unwrap()).unwrap();
    let patience = Duration::from_secs(20);
    std::thread::scope(|scope| {
        let second = scope.spawn(|| meet(&ranks[1], patience, || Ok(Vec::new())));
        let (stream, _) = before.accept().unwrap();
        // Closing the connection with the greeting unread resets it.
        while stream.peek(&mut [0; 16]).unwrap() < 16 {}
        drop((before, stream));
        let first = meet(&ranks[0], patience, || Ok(vec![7; 128]));
        assert_eq!(first.unwrap(), [7; 128]);
        assert_eq!(second.join().unwrap().unwrap(), [7; 128]);
    });
}

#[test]
fn a_place_without_a_port_is_an_error_of_every_rank_at_once() {
    let began = Instant::now();
    for met in all(&ranks(2, "tcp://localhost"), Duration::from_secs(60)) {
        let error = met.unwrap_err().to_string();
        assert!(error.contains("tcp://localhost"), "{error}");
    }
    assert!(began.elapsed() < Duration::from_secs(30));
}

#[test]
fn a_place_that_is_neither_an_address_nor_a_file_is_refused() {
    let met = all(&ranks(2, "carrier pigeon"), Duration::from_secs(1));
    for error in met {
        let error = error.unwrap_err().to_string();
        assert!(error.contains("carrier pigeon"), "{error}");
    }
}

#[test]
fn who_connects_and_says_something_else_is_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let [place, _] = places(folder.path());
    let ranks = ranks(2, &place);
    let address = place.strip_prefix("tcp://").unwrap().to_owned();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let deadline = Instant::now() + Duration::from_secs(10);
            while Instant::now() < deadline {
                if let Ok(mut stranger) = TcpStream::connect(&address) {
                    let _ = stranger.write_all(b"GET / HTTP/1.0\r\n\r\n");
                    break;
                }
            }
        });
        for met in all(&ranks, Duration::from_secs(20)) {
            assert_eq!(met.unwrap(), [7; 128]);
        }
    });
}

#[test]
fn connections_that_say_nothing_hold_up_no_rank() {
    let folder = tempfile::tempdir().unwrap();
    for silent in [8, 100] {
        let [place, _] = places(folder.path());
        let ranks = ranks(3, &place);
        let address = place.strip_prefix("tcp://").unwrap();
        std::thread::scope(|scope| {
            let first = scope.spawn(|| all(&ranks[..1], Duration::from_secs(5)));
            let deadline = Instant::now() + Duration::from_secs(5);
            let reach = || loop {
                match connect(address, deadline) {
                    Ok(stream) => break stream,
                    Err(error) => assert!(Instant::now() < deadline, "{error}"),
                }
            };
            let strangers: Vec<_> = (0..silent).map(|_| reach()).collect();
            for met in all(&ranks[1..], Duration::from_secs(5)) {
                assert_eq!(met.unwrap(), [7; 128], "{silent} strangers");
            }
            assert!(first.join().unwrap()[0].is_ok(), "{silent} strangers");
            drop(strangers);
        });
    }
}
