use std::sync::atomic::AtomicBool;

use super::book::Book;
use super::buffer::{Buffers, Event, What};
use super::*;

/// The rows of `events`, without the columns that do not matter here.
fn rows(events: &[What]) -> Vec<String> {
    let event = |(number, &what): (usize, &What)| Event {
        number: number as u64,
        what,
        stream: 3,
        micros: 3_600_000_000 * 25 + 61_000_002,
        thread: 1,
    };
    let events: Vec<Event> = events.iter().enumerate().map(event).collect();
    let mut rows = Vec::new();
    Book::default().write(&events, &mut rows);
    let text = String::from_utf8(rows).expect("text");
    let row = |line: &str| line.strip_prefix("1,01:01:01:000002,").map(String::from);
    text.lines()
        .map(|line| row(line).expect("thread and time"))
        .collect()
}

#[test]
fn a_block_is_freed_with_what_it_was_allocated_with() {
    let made = rows(&[
        What::Alloc { addr: 16, bytes: 5 },
        What::Free { addr: 16 },
        What::Alloc { addr: 16, bytes: 6 },
        What::Failure { bytes: 99 },
    ]);
    assert_eq!(
        made,
        [
            "allocate,0x7f0000000000,5,0x3",
            "free,0x7f0000000000,5,0x3",
            "allocate,0x7f0000000200,6,0x3",
            "allocate failure,0x0,99,0x3",
        ]
    );
}

#[test]
fn blocks_that_change_places_keep_their_names() {
    let made = rows(&[
        What::Alloc { addr: 1, bytes: 10 },
        What::Alloc { addr: 2, bytes: 20 },
        What::Lift { addr: 1 },
        What::Lift { addr: 2 },
        What::Lift { addr: 77 },
        What::Put { addr: 2 },
        What::Put { addr: 1 },
        What::Put { addr: 78 },
        What::Free { addr: 2 },
        What::Resize { addr: 1, bytes: 7 },
        What::Free { addr: 1 },
    ]);
    assert_eq!(
        made[2..],
        [
            "free,0x7f0000000000,10,0x3",
            "free,0x7f0000000200,20,0x3",
            "allocate,0x7f0000000200,7,0x3",
            "free,0x7f0000000200,7,0x3",
        ]
    );
}

#[test]
fn a_free_of_what_is_not_live_is_no_row() {
    assert!(rows(&[What::Free { addr: 1 }, What::Resize { addr: 1, bytes: 1 }]).is_empty());
}

#[test]
fn events_of_many_threads_come_in_one_order_without_a_gap() {
    const THREADS: usize = 4;
    const EACH: u64 = 5000;
    let (buffers, over) = (Buffers::new(), AtomicBool::new(false));
    let mut seen = Vec::new();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    for event in 0..EACH {
                        buffers.push(What::Free { addr: event }, 0);
                    }
                })
            })
            .collect();
        let reader = scope.spawn(|| {
            let mut seen = Vec::new();
            loop {
                let last = over.load(Ordering::Acquire);
                seen.extend(buffers.collect());
                if last {
                    return seen;
                }
            }
        });
        for thread in threads {
            thread.join().expect("it ends");
        }
        over.store(true, Ordering::Release);
        seen = reader.join().expect("it ends");
    });
    assert_eq!(seen.len() as u64, THREADS as u64 * EACH);
    assert!(
        (0..)
            .zip(&seen)
            .all(|(number, event)| event.number == number)
    );
    for thread in 1..=THREADS as u32 {
        let own = seen.iter().filter(|event| event.thread == thread);
        let own = own.map(|event| event.what);
        assert!(own.eq((0..EACH).map(|addr| What::Free { addr })));
    }
}

#[test]
fn the_end_of_the_process_waits_for_no_recording_that_is_over() {
    let folder = tempfile::tempdir().expect("a folder");
    let recording = Recording::to("record", &folder.path().join("log.csv")).expect("a recording");
    let shared = Arc::clone(&recording.shared);
    drop(recording);
    let begun = Instant::now();
    shared
        .flush(Some(begun + AT_EXIT))
        .expect("nothing is wrong");
    assert!(begun.elapsed() < AT_EXIT / 2);
}

#[test]
fn a_file_that_could_not_be_made_keeps_no_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("later/log.csv");
    assert!(Recording::to("record", &path).is_err());
    std::fs::create_dir(folder.path().join("later")).expect("a folder");
    let recording = Recording::to("record", &path).expect("a recording");
    assert_eq!(recording.path(), path);
}

#[test]
fn a_writer_that_could_not_be_started_keeps_no_name_and_leaves_the_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("log.csv");
    std::fs::write(&path, "of another program").expect("a file");
    let none = |_| Err(std::io::ErrorKind::WouldBlock.into());
    assert!(Recording::by("record", &path, none).is_err());
    let text = std::fs::read_to_string(&path).expect("a file");
    assert_eq!(text, "of another program");
    let recording = Recording::to("record", &path).expect("a recording");
    assert_eq!(recording.path(), path);
}

#[test]
fn a_recording_that_ends_in_a_host_call_does_not_wait_for_its_writer() {
    let folder = tempfile::tempdir().expect("a folder");
    let (open, gate) = std::sync::mpsc::channel::<()>();
    let late = |work: Box<dyn FnOnce() + Send>| {
        std::thread::Builder::new().spawn(move || {
            // Returns when the sender is dropped.
            let _ = gate.recv();
            work();
        })
    };
    let path = folder.path().join("log.csv");
    let recording = Recording::by("record", &path, late).expect("a recording");
    let device = crate::Device::host().expect("the host device");
    let stream = device.stream().expect("a stream");
    let (tell, told) = std::sync::mpsc::channel();
    let work = Box::new(move || {
        drop(recording);
        let _ = tell.send(());
    });
    (device.backend().host_call(stream.raw(), work)).expect("queued");
    let went = told.recv_timeout(Duration::from_secs(20));
    drop(open);
    went.expect("it waits");
}

fn pipe(folder: &tempfile::TempDir) -> PathBuf {
    let path = folder.path().join("pipe");
    let name = std::ffi::CString::new(path.to_str().expect("text")).expect("no zero");
    // SAFETY: the call reads the text.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    path
}

/// The result of `work`, with a time limit.
fn in_time<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(work()));
    (told.recv_timeout(Duration::from_secs(30))).expect("it waits without end")
}

#[test]
fn a_pipe_that_nobody_reads_ends_the_recording_with_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = pipe(&folder);
    let mut options = std::fs::OpenOptions::new();
    let reader = options.read(true).write(true).open(&path).expect("a pipe");
    let error = in_time(move || {
        let recording = Recording::to("record", &path).expect("a recording");
        // More than a pipe holds, and more than a thread's buffer.
        for addr in 0..100_000 {
            recording.note(What::Failure { bytes: addr }, 0);
        }
        let error = recording.flush().expect_err("nobody reads");
        drop(recording);
        error.to_string()
    });
    assert!(error.contains("took nothing"), "{error}");
    drop(reader);
}

#[test]
fn a_pipe_that_nobody_opens_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = pipe(&folder);
    let error = in_time(move || Recording::to("record", &path).err().expect("nobody reads"));
    assert!(error.to_string().contains("reads"), "{error}");
}
