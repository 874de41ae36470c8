//! A fragmented pool before and after a compaction, as a map of its memory.
//!
//! Plays the trace of a training run into a pool of movable blocks, up to a moment when much memory is live
//! and most free memory is scattered. Draws the pool, compacts it, and draws it again: as text here, and as a
//! picture in `defragment.svg`.
//!
//! ```text
//! cargo run --release --example defragment [TRACE [PICTURE]]
//! ```

use std::fmt::Write;

use warpool::compact::{Goal, Kind, Layout};
use warpool::movable::Movable;
use warpool::observe::{Bytes, EventKind, Trace};
use warpool::{Device, Error, Pool, PoolConfig, Result, Stream};

/// Blocks are this many times smaller than in the trace, so that the example runs on any machine.
const SCALE: u64 = 16;

/// Number of events between two checks of the scattered free memory.
const LOOK_EVERY: usize = 500;

/// Cells per line of text, and lines of a map.
const COLUMNS: u64 = 80;
const LINES: u64 = 16;

/// A trace that is being played.
struct Player<'t> {
    trace: &'t Trace,
    pool: Pool,
    stream: Stream,
    live: Vec<Option<Movable<u8>>>,
}

impl<'t> Player<'t> {
    fn new(device: &Device, trace: &'t Trace) -> Result<Self> {
        let mut live = Vec::new();
        live.resize_with(trace.blocks() as usize, || None);
        Ok(Self {
            trace,
            pool: Pool::new(device, PoolConfig::default())?,
            stream: device.stream()?,
            live,
        })
    }

    fn play(&mut self, events: std::ops::Range<usize>) -> Result<()> {
        for event in &self.trace.events()[events] {
            let block = &mut self.live[event.block as usize];
            *block = match event.kind {
                EventKind::Alloc => {
                    let bytes = event.bytes.div_ceil(SCALE) as usize;
                    let made = self.pool.alloc_movable::<u8>(&self.stream, bytes)?;
                    let held = made.hold(&self.stream)?;
                    // SAFETY: the block has the bytes and is held for the stream.
                    unsafe {
                        let backend = self.stream.device().raw_backend();
                        let (byte, stream) = (event.block as u8, self.stream.raw());
                        backend.fill(held.addr(), byte, bytes as u64, stream)?;
                    }
                    drop(held);
                    Some(made)
                }
                EventKind::Free => None,
            };
        }
        Ok(())
    }

    /// Whether every live block still has the contents written into it.
    fn is_whole(&self) -> Result<bool> {
        for (number, block) in self.live.iter().enumerate() {
            let Some(block) = block else { continue };
            let bytes = block.download(&self.stream)?;
            if bytes.iter().any(|&byte| byte != number as u8) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The event after which the smaller of two numbers is largest: the free bytes outside the largest hole, and
/// the live bytes.
fn most_scattered(device: &Device, trace: &Trace) -> Result<usize> {
    let mut player = Player::new(device, trace)?;
    let mut worst = (0, 0);
    for from in (0..trace.events().len()).step_by(LOOK_EVERY) {
        let to = (from + LOOK_EVERY).min(trace.events().len());
        player.play(from..to)?;
        let layout = player.pool.layout()?;
        let scattered = layout.free_bytes() - layout.largest_hole();
        worst = worst.max((scattered.min(layout.live_bytes()), to));
    }
    Ok(worst.1)
}

/// Begin and end of the mapped memory of a layout.
fn span(layout: &Layout) -> (u64, u64) {
    let first = layout.extents().next().map_or(0, |extent| extent.addr);
    let end = layout
        .extents()
        .next_back()
        .map_or(0, |extent| extent.end());
    (first, end.max(first + 1))
}

/// A line of the map is the next `(end - first) / LINES` bytes. The more of a cell is live, the darker it is.
fn text(layout: &Layout, (first, end): (u64, u64)) -> String {
    let cell = (end - first).div_ceil(COLUMNS * LINES);
    let mut live = vec![0u64; (COLUMNS * LINES) as usize];
    let mut mapped = live.clone();
    for extent in layout.extents() {
        let mut at = extent.addr;
        while at < extent.end().min(end) {
            let index = ((at - first) / cell) as usize;
            let upto = extent.end().min(first + (index as u64 + 1) * cell);
            mapped[index] += upto - at;
            live[index] += if extent.kind == Kind::Hole {
                0
            } else {
                upto - at
            };
            at = upto;
        }
    }
    let shade = |(&live, &mapped): (&u64, &u64)| match (live * 4).div_ceil(cell) {
        _ if mapped == 0 => ' ',
        0 => '·',
        1 => '░',
        2 => '▒',
        3 => '▓',
        _ => '█',
    };
    let cells: Vec<char> = live.iter().zip(&mapped).map(shade).collect();
    let lines = cells.chunks(COLUMNS as usize);
    lines
        .map(|line| line.iter().collect::<String>() + "\n")
        .collect()
}

/// Colours for a light page and for a dark one.
const STYLE: &str = "<style>.live{fill:#2f6fab}.fixed{fill:#b3541e}.free{fill:#e2e5e9}text{fill:#1f2328}\n\
    @media (prefers-color-scheme:dark){.live{fill:#4c9aff}.fixed{fill:#f0883e}.free{fill:#2d333b}text{fill:#e6edf3}}\
    </style>\n";

/// One map of the picture, with its top at `y`.
fn draw(svg: &mut String, y: f64, title: &str, layout: &Layout, (first, end): (u64, u64)) {
    const WIDTH: f64 = 960.0;
    const LINE: f64 = 18.0;
    let row = (end - first).div_ceil(LINES);
    let _ = writeln!(svg, r#"<text x="20" y="{:.1}">{title}</text>"#, y - 8.0);
    for extent in layout.extents() {
        let class = match extent.kind {
            Kind::Movable => "live",
            Kind::Fixed => "fixed",
            Kind::Hole => "free",
        };
        let mut at = extent.addr;
        while at < extent.end().min(end) {
            let line = (at - first) / row;
            let upto = extent.end().min(first + (line + 1) * row);
            let x = 20.0 + (at - first - line * row) as f64 / row as f64 * WIDTH;
            let width = (upto - at) as f64 / row as f64 * WIDTH;
            let top = y + line as f64 * LINE;
            let _ = writeln!(
                svg,
                r#"<rect x="{x:.2}" y="{top:.1}" width="{width:.2}" height="{:.1}" class="{class}"/>"#,
                LINE - 2.0
            );
            at = upto;
        }
    }
}

fn picture(before: &Layout, after: &Layout, span: (u64, u64)) -> String {
    let (width, height) = (1000, 700);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"15\">\n{STYLE}"
    );
    draw(&mut svg, 40.0, &caption("Before", before), before, span);
    draw(&mut svg, 375.0, &caption("After", after), after, span);
    svg.push_str("</svg>\n");
    svg
}

fn caption(when: &str, layout: &Layout) -> String {
    let holes = layout.largest_holes().count();
    format!(
        "{when}: {} live, {} free in {holes} hole{}, the largest {}",
        Bytes(layout.live_bytes()),
        Bytes(layout.free_bytes()),
        if holes == 1 { "" } else { "s" },
        Bytes(layout.largest_hole())
    )
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let recorded = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/traces/resnet50_train_varres.csv.gz"
    );
    let path = args.next().unwrap_or_else(|| recorded.to_owned());
    let drawing = args.next().unwrap_or_else(|| "defragment.svg".to_owned());
    let device = Device::any()?;
    let trace = Trace::read(path, u64::MAX)?;

    let until = most_scattered(&device, &trace)?;
    let mut player = Player::new(&device, &trace)?;
    player.play(0..until)?;
    let before = player.pool.layout()?;
    let moved = player.pool.compact(&Goal::Full)?;
    let after = player.pool.layout()?;
    let span = span(&before);

    println!("{} after {until} events, sizes / {SCALE}\n", trace.name());
    println!("{}\n{}", caption("Before", &before), text(&before, span));
    println!("{}\n{}", caption("After", &after), text(&after, span));
    println!(
        "moved {} in {} blocks; every byte is as it was: {}",
        Bytes(moved.bytes),
        moved.blocks,
        player.is_whole()?
    );
    let write = std::fs::write(&drawing, picture(&before, &after, span));
    write.map_err(|error| Error::Os {
        call: "write",
        words: format!("{drawing}: {error}"),
    })?;
    println!("a picture is in {drawing}");
    Ok(())
}
