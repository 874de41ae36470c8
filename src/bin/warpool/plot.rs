//! Plots of measurements as SVG, for light and dark screens.

use std::fmt::Write;

use crate::record::digits;

const WIDTH: f64 = 760.0;

const STYLE: &str = "\
text{font:13px system-ui,sans-serif;fill:#1f2328}.title{font-weight:600;font-size:15px}\
.soft{fill:#59636e}.card{fill:#fff;stroke:#d0d7de}.grid{stroke:#e3e7eb}.line{fill:none;stroke-width:2}\
.f0{fill:#0969da}.f1{fill:#d4820f}.f2{fill:#1a8a5f}.f3{fill:#8c959f}.f4{fill:#a1479f}\
.s0{stroke:#0969da}.s1{stroke:#d4820f}.s2{stroke:#1a8a5f}.s3{stroke:#8c959f}.s4{stroke:#a1479f}\
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.soft{fill:#9198a1}\
.card{fill:#0d1117;stroke:#3d444d}.grid{stroke:#262c34}\
.f0{fill:#4c9dff}.f1{fill:#f0a940}.f2{fill:#3fb984}.f3{fill:#7d8590}.f4{fill:#d07fce}\
.s0{stroke:#4c9dff}.s1{stroke:#f0a940}.s2{stroke:#3fb984}.s3{stroke:#7d8590}.s4{stroke:#d07fce}}";

/// Bars side by side, in groups.
pub struct Bars<'a> {
    pub title: &'a str,
    pub unit: &'a str,
    pub series: &'a [&'a str],
    /// Each group's name, and its bars: the index of the series, and the length.
    pub groups: Vec<(&'a str, Vec<(usize, f64)>)>,
}

/// The scale of an axis.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    Linear,
    /// Logarithmic, by powers of ten.
    Log,
    /// Named positions at equal distances.
    Places,
}

/// Lines through points.
pub struct Lines<'a> {
    pub title: &'a str,
    pub x: (&'a str, Scale),
    pub y: (&'a str, Scale),
    /// Names of the positions of `x`, if it has names.
    pub places: Vec<String>,
    /// Each line's name and points.
    pub series: Vec<(&'a str, Vec<(f64, f64)>)>,
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

fn begin(title: &str, height: f64) -> String {
    let (width, title) = (WIDTH, escaped(title));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" role=\"img\" aria-label=\"{title}\">\n<style>{STYLE}</style>\n\
         <rect class=\"card\" x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"8\"/>\n\
         <text class=\"title\" x=\"20\" y=\"30\">{title}</text>\n",
        width - 1.0,
        height - 1.0
    )
}

/// A coloured square and a name for each series, on one line.
fn legend(svg: &mut String, y: f64, names: impl Iterator<Item = impl AsRef<str>>) {
    let mut x = 20.0;
    for (at, name) in names.enumerate() {
        let name = name.as_ref();
        let _ = writeln!(
            svg,
            "<rect class=\"f{at}\" x=\"{x:.0}\" y=\"{:.0}\" width=\"11\" height=\"11\" rx=\"2\"/>\
             <text x=\"{:.0}\" y=\"{y:.0}\">{}</text>",
            y - 10.0,
            x + 17.0,
            escaped(name)
        );
        x += 17.0 + 7.2 * name.chars().count() as f64 + 22.0;
    }
}

impl Bars<'_> {
    pub fn svg(&self) -> String {
        const BAR: f64 = 13.0;
        const STEP: f64 = 16.0;
        const GAP: f64 = 14.0;
        const LEFT: f64 = 235.0;
        const TOP: f64 = 78.0;
        let bars: usize = self.groups.iter().map(|(_, bars)| bars.len()).sum();
        let height = TOP + bars as f64 * STEP + self.groups.len() as f64 * GAP + 6.0;
        let longest = self.groups.iter().flat_map(|(_, bars)| bars);
        let longest = longest.fold(0.0, |most, (_, length)| f64::max(most, *length));
        let scale = (WIDTH - LEFT - 80.0) / longest.max(f64::MIN_POSITIVE);
        let mut svg = begin(self.title, height);
        legend(&mut svg, 54.0, self.series.iter());
        let mut y = TOP;
        for (name, bars) in &self.groups {
            let middle = y + bars.len() as f64 * STEP / 2.0 + 3.0;
            let _ = writeln!(
                svg,
                "<text x=\"{:.0}\" y=\"{middle:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 12.0,
                escaped(name)
            );
            for (series, length) in bars {
                let wide = (length * scale).max(1.0);
                let _ = writeln!(
                    svg,
                    "<rect class=\"f{series}\" x=\"{LEFT}\" y=\"{y:.1}\" width=\"{wide:.1}\" height=\"{BAR}\" \
                     rx=\"2\"/><text class=\"soft\" x=\"{:.1}\" y=\"{:.1}\">{} {}</text>",
                    LEFT + wide + 6.0,
                    y + BAR - 2.0,
                    digits(*length),
                    self.unit
                );
                y += STEP;
            }
            y += GAP;
        }
        svg + "</svg>\n"
    }
}

/// A tick's number, with as few digits as possible.
fn short(tick: f64) -> String {
    if tick >= 1000.0 {
        return digits(tick);
    }
    let text = format!("{tick:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The positions of an axis's values, from 0 to 1, and its labels.
struct Axis {
    scale: Scale,
    from: f64,
    to: f64,
    ticks: Vec<(f64, String)>,
}

impl Axis {
    fn of(scale: Scale, values: impl Iterator<Item = f64> + Clone, places: &[String]) -> Self {
        let most = values.clone().fold(f64::MIN_POSITIVE, f64::max);
        let least = values.filter(|value| *value > 0.0).fold(most, f64::min);
        match scale {
            Scale::Places => {
                let named = places.iter().cloned().enumerate();
                Self {
                    scale,
                    from: 0.0,
                    to: (places.len().max(2) - 1) as f64,
                    ticks: named.map(|(at, name)| (at as f64, name)).collect(),
                }
            }
            Scale::Log => {
                let (from, to) = (least.log10().floor() as i32, most.log10().ceil() as i32);
                let ticks = (from..=to).map(|power| 10f64.powi(power));
                Self {
                    scale,
                    from: f64::from(from),
                    to: f64::from(to.max(from + 1)),
                    ticks: ticks.map(|tick| (tick, short(tick))).collect(),
                }
            }
            Scale::Linear => {
                let power = 10f64.powf((most / 4.0).log10().floor());
                let steps = [1.0, 2.0, 5.0, 10.0].map(|times| times * power);
                let step = steps.into_iter().find(|step| most / step <= 5.0);
                let step = step.unwrap_or(most);
                let count = (most / step).ceil() as u32;
                let ticks = (0..=count).map(|at| f64::from(at) * step);
                Self {
                    scale,
                    from: 0.0,
                    to: f64::from(count) * step,
                    ticks: ticks.map(|tick| (tick, short(tick))).collect(),
                }
            }
        }
    }

    fn place(&self, value: f64) -> f64 {
        let value = if self.scale == Scale::Log {
            value.log10()
        } else {
            value
        };
        (value - self.from) / (self.to - self.from)
    }
}

impl Lines<'_> {
    const LEFT: f64 = 74.0;
    const TOP: f64 = 76.0;
    const HEIGHT: f64 = 250.0;
    const WIDE: f64 = WIDTH - 104.0;

    pub fn svg(&self) -> String {
        let points = || self.series.iter().flat_map(|(_, points)| points);
        let x = Axis::of(self.x.1, points().map(|point| point.0), &self.places);
        let y = Axis::of(self.y.1, points().map(|point| point.1), &[]);
        let at_x = |value| Self::LEFT + x.place(value) * Self::WIDE;
        let at_y = |value| Self::TOP + (1.0 - y.place(value)) * Self::HEIGHT;
        let mut svg = begin(self.title, Self::TOP + Self::HEIGHT + 58.0);
        legend(&mut svg, 54.0, self.series.iter().map(|(name, _)| name));
        let ticks = |axis: &Axis, at: &dyn Fn(f64) -> f64| -> Vec<(f64, String)> {
            let each = axis.ticks.iter();
            each.map(|(value, name)| (at(*value), escaped(name)))
                .collect()
        };
        self.axes(&mut svg, &ticks(&x, &at_x), &ticks(&y, &at_y));
        for (series, (_, points)) in self.series.iter().enumerate() {
            let points = points.iter().map(|(x, y)| (at_x(*x), at_y(*y)));
            line(&mut svg, series, points);
        }
        svg + "</svg>\n"
    }

    /// The grid, and the names of ticks and axes; ticks are placed.
    fn axes(&self, svg: &mut String, x: &[(f64, String)], y: &[(f64, String)]) {
        for (at, name) in y {
            let _ = writeln!(
                svg,
                "<path class=\"grid\" d=\"M{} {at:.1}h{}\"/><text class=\"soft\" x=\"{:.0}\" \
                 y=\"{:.1}\" text-anchor=\"end\">{name}</text>",
                Self::LEFT,
                Self::WIDE,
                Self::LEFT - 8.0,
                at + 4.0
            );
        }
        for (at, name) in x {
            let _ = writeln!(
                svg,
                "<text class=\"soft\" x=\"{at:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{name}</text>",
                Self::TOP + Self::HEIGHT + 20.0,
            );
        }
        let _ = writeln!(
            svg,
            "<text class=\"soft\" x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\">{}</text>\
             <text class=\"soft\" transform=\"translate(18 {:.0}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            Self::LEFT + Self::WIDE / 2.0,
            Self::TOP + Self::HEIGHT + 44.0,
            escaped(self.x.0),
            Self::TOP + Self::HEIGHT / 2.0,
            escaped(self.y.0)
        );
    }
}

/// The line of a series, with a dot at each point.
fn line(svg: &mut String, series: usize, points: impl Iterator<Item = (f64, f64)>) {
    let path: Vec<String> = points.map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
    let _ = writeln!(
        svg,
        "<path class=\"line s{series}\" d=\"M{}\"/>",
        path.join("L")
    );
    for point in &path {
        let (x, y) = point.split_once(' ').unwrap_or_default();
        let _ = writeln!(
            svg,
            "<circle class=\"f{series}\" cx=\"{x}\" cy=\"{y}\" r=\"3.5\"/>"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_bar_ends_within_the_picture_and_every_bar_has_its_figure() {
        let bars = Bars {
            title: "a < b",
            unit: "%",
            series: &["ours", "theirs"],
            groups: vec![
                ("one", vec![(0, 0.39), (1, 41.8)]),
                ("two", vec![(1, 7.85)]),
            ],
        };
        let svg = bars.svg();
        for text in [
            "a &lt; b",
            ">ours<",
            ">0.390 %<",
            ">41.8 %<",
            ">7.85 %<",
            ">two<",
        ] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        assert!(svg.contains("width=\"445.0\""), "{svg}");
        assert!(svg.contains("prefers-color-scheme:dark"));
    }

    #[test]
    fn points_lie_where_their_axes_say() {
        let lines = |scale| Lines {
            title: "t",
            x: ("threads", Scale::Places),
            y: ("M pairs/s", scale),
            places: ["1", "2", "4"].map(str::to_owned).to_vec(),
            series: vec![("ours", vec![(0.0, 1.0), (1.0, 10.0), (2.0, 100.0)])],
        };
        let log = lines(Scale::Log).svg();
        assert!(
            log.contains("d=\"M74.0 326.0L402.0 201.0L730.0 76.0\""),
            "{log}"
        );
        assert!(log.contains(">100<") && !log.contains(">20<"), "{log}");
        let linear = lines(Scale::Linear).svg();
        assert!(linear.contains("L402.0 301.0L730.0 76.0"), "{linear}");
        for tick in ["0", "20", "100"] {
            assert!(linear.contains(&format!(">{tick}<")), "{linear}");
        }
    }
}
