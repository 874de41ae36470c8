//! The progress bar: the fraction of a trace's work that the device has done, and the time left.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use warpool::observe::{EDGE_BYTES, EventKind, Trace, Verify};

/// The work of an event in addition to its bytes, as the number of bytes that take as long to stamp
/// and verify.
const EVENT_WORK: u64 = 16 << 10;

/// Most characters of a trace's name.
const NAME: usize = 18;

/// A bar on standard error, drawn only if that is a terminal.
pub struct Progress {
    bar: ProgressBar,
    /// The work of all events before each one; the last entry is the total.
    work: Vec<u64>,
    started: Instant,
}

impl Progress {
    /// The bar of a trace that is played `plays` times.
    pub fn new(trace: &Trace, verify: Verify, plays: usize) -> Self {
        Self::on(ProgressDrawTarget::stderr(), trace, verify, plays)
    }

    fn on(target: ProgressDrawTarget, trace: &Trace, verify: Verify, plays: usize) -> Self {
        let events = std::iter::repeat_n(trace.events(), plays).flatten();
        let mut done = 0_u64;
        let mut work = vec![0];
        work.extend(events.map(|event| {
            done = done.saturating_add(EVENT_WORK);
            if event.kind == EventKind::Alloc {
                done = done.saturating_add(verified(event.bytes, verify).saturating_mul(2));
            }
            done
        }));
        let bar = ProgressBar::with_draw_target(Some(done), target);
        // The template is a constant; without it the bar has the default form.
        if let Ok(style) = ProgressStyle::with_template("{prefix} {wide_bar} {percent:>3} %{msg}") {
            bar.set_style(style);
        }
        bar.set_prefix(short(trace.name()));
        Self {
            bar,
            work,
            started: Instant::now(),
        }
    }

    /// Sets the number of finished events to `done`.
    pub fn events(&self, done: u64) {
        let done = usize::try_from(done).unwrap_or(usize::MAX);
        let all = self.work.last().copied().unwrap_or(0);
        let done = self.work.get(done).copied().unwrap_or(all);
        if let Some(left) = time_left(self.started.elapsed(), done, all) {
            self.bar.set_message(format!(", {} left", words(left)));
        }
        self.bar.set_position(done);
    }

    /// Removes the bar.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// Bytes of a block that are stamped and verified.
fn verified(bytes: u64, verify: Verify) -> u64 {
    match verify {
        Verify::Full => bytes,
        Verify::Edges => bytes.min(2 * EDGE_BYTES),
        Verify::Off => 0,
    }
}

/// The time left at the average speed so far.
fn time_left(elapsed: Duration, done: u64, all: u64) -> Option<Duration> {
    let left = all.saturating_sub(done);
    let seconds = elapsed.as_secs_f64() * (left as f64 / done as f64);
    (done > 0).then(|| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
}

/// `8 s`, `3 min`, `2.5 h`.
pub fn words(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match seconds {
        ..99.5 => format!("{seconds:.0} s"),
        ..5970.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}

/// The file's name, cut off at the end if it is long.
fn short(name: &str) -> String {
    let name = name.rsplit('/').next().unwrap_or(name);
    if name.chars().count() <= NAME {
        return name.to_owned();
    }
    let start: String = name.chars().take(NAME - 1).collect();
    format!("{start}…")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    /// A terminal of 60 columns that keeps its output.
    #[derive(Debug, Clone, Default)]
    struct Terminal(Arc<Mutex<Vec<String>>>);

    impl indicatif::TermLike for Terminal {
        fn width(&self) -> u16 {
            60
        }
        fn move_cursor_up(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }
        fn write_line(&self, line: &str) -> std::io::Result<()> {
            self.write_str(line)
        }
        fn write_str(&self, text: &str) -> std::io::Result<()> {
            self.0.lock().expect("lines").push(text.to_owned());
            Ok(())
        }
        fn clear_line(&self) -> std::io::Result<()> {
            Ok(())
        }
        fn flush(&self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn trace(name: &str) -> Trace {
        let text = "Thread,Time,Action,Pointer,Size,Stream\n1,0,allocate,1,1000000,0\n\
                    1,0,free,1,1000000,0\n1,0,allocate,2,3000000,0\n";
        Trace::read_from(name, text.as_bytes(), u64::MAX).expect("reads")
    }

    #[test]
    fn the_bar_fits_sixty_columns_whatever_the_name() {
        let terminal = Terminal::default();
        let target = ProgressDrawTarget::term_like_with_hz(Box::new(terminal.clone()), 255);
        let name = "/a/long/path/resnet50_train_varres_again_and_again.csv.gz";
        let progress = Progress::on(target, &trace(name), Verify::Full, 1);
        progress.events(1);
        progress.bar.force_draw();
        let lines = terminal.0.lock().expect("lines").clone();
        assert!(
            lines.iter().all(|line| line.chars().count() <= 60),
            "{lines:?}"
        );
        let drawn = lines.iter().find(|line| line.contains("left"));
        let drawn = drawn.unwrap_or_else(|| panic!("{lines:?}"));
        assert!(
            drawn.starts_with("resnet50_train_va…") && drawn.contains(" %, "),
            "{drawn}"
        );
    }

    #[test]
    fn the_time_left_goes_by_work_and_not_by_events() {
        let progress = Progress::new(&trace("t"), Verify::Full, 1);
        let all = 3 * EVENT_WORK + 2 * 4_000_000;
        let first = EVENT_WORK + 2 * 1_000_000;
        assert_eq!(progress.work, [0, first, first + EVENT_WORK, all]);
        let left = time_left(Duration::from_secs(10), all / 4, all).expect("a time");
        assert!((29..=31).contains(&left.as_secs()), "{left:?}");
        assert_eq!(time_left(Duration::from_secs(10), 0, all), None);
        assert_eq!(Progress::new(&trace("t"), Verify::Off, 2).work.len(), 7);
    }

    #[test]
    fn a_trace_of_more_bytes_than_64_bits_count_has_a_bar_and_a_time() {
        let block = format!("1,0,allocate,1,{0},0\n1,0,free,1,{0},0\n", 1u64 << 63);
        let text = format!("Thread,Time,Action,Pointer,Size,Stream\n{block}{block}");
        let trace = Trace::read_from("t", text.as_bytes(), u64::MAX).expect("reads");
        let progress = Progress::new(&trace, Verify::Full, 2);
        progress.events(1);
        assert_eq!(progress.work.last(), Some(&u64::MAX));
        let day = Duration::from_secs(24 * 3600);
        assert_eq!(time_left(day, 1, u64::MAX), Some(Duration::MAX));
    }

    #[test]
    fn times_are_said_in_the_unit_of_their_size() {
        for (seconds, text) in [(0, "0 s"), (99, "99 s"), (150, "2 min"), (9000, "2.5 h")] {
            assert_eq!(words(Duration::from_secs(seconds)), text);
        }
    }
}
