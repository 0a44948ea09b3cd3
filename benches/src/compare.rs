//! The rule for speed bars: paired repeats against a baseline, and what may be said about them.
//!
//! Within one run every repeat measures `raw-plain`, roundel, and roundel once more, one right after the
//! other and each time beginning with another of them, because a machine has phases in which everything
//! is slower. What counts are the ratios inside a repeat. The ratio of roundel's two runs is 1 but for the
//! noise of the row: a bar is *passed* if the median ratio reaches it, the row is *inconclusive* if it is
//! missed by less than the noise, and *failed* otherwise.

use std::io;

/// Who runs the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// The baseline: a bare loop around a ring, `raw.rs`.
    RawPlain,
    /// Ours, `ours.rs`.
    Roundel,
}

impl Backend {
    /// How it is called in arguments and tables.
    pub fn name(self) -> &'static str {
        match self {
            Backend::RawPlain => "raw-plain",
            Backend::Roundel => "roundel",
        }
    }

    /// The backend of that name.
    pub fn from_name(name: &str) -> Option<Backend> {
        [Backend::RawPlain, Backend::Roundel]
            .into_iter()
            .find(|backend| backend.name() == name)
    }
}

/// One row of the answer.
pub struct Row<P> {
    /// What the row is called in the table.
    pub name: String,
    /// What `measure` is to run.
    pub parameter: P,
    /// Roundel's share of the baseline's figure that is asked for; `None` where nothing is asked.
    pub bar: Option<f64>,
}

/// What may be said about a row, or about all of them: the worst counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// The median ratio reaches the bar.
    Pass,
    /// It misses the bar by less than the row's noise.
    Inconclusive,
    /// It misses the bar by more.
    Fail,
}

/// The order inside a repeat; each repeat begins one further.
const ORDER: [Backend; 3] = [Backend::RawPlain, Backend::Roundel, Backend::Roundel];

/// Measures all rows `repeats` times, prints the table, and says how the worst row did.
///
/// `measure` gives a figure of which more is better, in `unit`.
///
/// # Errors
///
/// The first error of `measure`.
pub fn compare<P>(
    rows: &[Row<P>],
    repeats: usize,
    unit: &str,
    mut measure: impl FnMut(&P, Backend) -> io::Result<f64>,
) -> io::Result<Verdict> {
    // For each row and each place in the order, one figure a repeat.
    let mut figures = vec![[const { Vec::new() }; ORDER.len()]; rows.len()];
    for repeat in 0..repeats {
        for (row, figures) in rows.iter().zip(&mut figures) {
            for place in 0..ORDER.len() {
                let place = (place + repeat) % ORDER.len();
                figures[place].push(measure(&row.parameter, ORDER[place])?);
            }
        }
    }

    println!(
        "{:<18}{:>14}{:>14}{:>24}{:>9}{:>8}  verdict ({repeats} repeats, {unit})",
        "", "raw-plain", "roundel", "ratio min/median/max", "noise", "bar"
    );
    let mut worst = Verdict::Pass;
    for (row, [raw, ours, again]) in rows.iter().zip(&figures) {
        let ratios = Spread::of(ours.iter().zip(raw).map(|(ours, raw)| ours / raw));
        let noise = Spread::of(again.iter().zip(ours).map(|(again, ours)| again / ours)).noise();
        let (bar, verdict) = match row.bar {
            Some(bar) => {
                let verdict = judge(ratios.median, bar, noise);
                worst = worst.max(verdict);
                (format!("{bar:.2}"), format!("{verdict:?}").to_lowercase())
            }
            None => ("-".to_owned(), "no bar".to_owned()),
        };
        println!(
            "{:<18}{:>14.0}{:>14.0}{:>24}{:>9}{:>8}  {verdict}",
            row.name,
            Spread::of(raw.iter().copied()).median,
            Spread::of(ours.iter().copied()).median,
            format!("{:.2}/{:.3}/{:.2}", ratios.min, ratios.median, ratios.max),
            format!("{noise:.3}"),
            bar,
        );
    }
    Ok(worst)
}

fn judge(median: f64, bar: f64, noise: f64) -> Verdict {
    if median >= bar {
        Verdict::Pass
    } else if median >= bar * (1.0 - noise) {
        Verdict::Inconclusive
    } else {
        Verdict::Fail
    }
}

/// How figures are spread; at least one.
struct Spread {
    min: f64,
    quarter: f64,
    median: f64,
    three_quarters: f64,
    max: f64,
}

impl Spread {
    fn of(figures: impl Iterator<Item = f64>) -> Spread {
        let mut sorted: Vec<f64> = figures.collect();
        sorted.sort_by(f64::total_cmp);
        let last = (sorted.len() - 1) as f64;
        let at = |part: f64| {
            let place = last * part;
            let (below, above) = (
                sorted[place.floor() as usize],
                sorted[place.ceil() as usize],
            );
            below + (above - below) * place.fract()
        };
        Spread {
            min: at(0.0),
            quarter: at(0.25),
            median: at(0.5),
            three_quarters: at(0.75),
            max: at(1.0),
        }
    }

    /// How far from 1 the middle half of these ratios reaches.
    fn noise(&self) -> f64 {
        (1.0 - self.quarter).max(self.three_quarters - 1.0).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_interpolates() {
        let spread = Spread::of([4.0, 1.0, 3.0, 2.0].into_iter());
        let figures = [
            spread.min,
            spread.quarter,
            spread.median,
            spread.three_quarters,
            spread.max,
        ];
        assert_eq!(figures, [1.0, 1.75, 2.5, 3.25, 4.0]);
        assert_eq!(Spread::of([7.0].into_iter()).median, 7.0);
    }

    /// The noise is the wider side of the middle half, and none if that lies at 1.
    #[test]
    fn noise_is_the_middle_half() {
        let noise = |figures: [f64; 5]| Spread::of(figures.into_iter()).noise();
        assert_eq!(noise([0.1, 1.0, 1.0, 1.0, 9.0]), 0.0);
        assert_eq!(noise([0.1, 0.75, 1.0, 1.125, 9.0]), 0.25);
        assert_eq!(noise([0.1, 0.75, 1.0, 1.5, 9.0]), 0.5);
    }

    #[test]
    fn the_bar_is_judged_with_the_noise() {
        assert_eq!(judge(0.93, 0.93, 0.0), Verdict::Pass);
        assert_eq!(judge(1.2, 0.93, 0.5), Verdict::Pass);
        assert_eq!(judge(0.92, 0.93, 0.02), Verdict::Inconclusive);
        assert_eq!(judge(0.92, 0.93, 0.01), Verdict::Fail);
    }

    /// Every repeat measures all three, each of them comes first in turn, and the worst row decides.
    #[test]
    fn repeats_are_interleaved_and_rotated() {
        let row = |name: &str, parameter, bar| Row {
            name: name.to_owned(),
            parameter,
            bar,
        };
        let rows = [row("equal", 1.0, Some(1.0)), row("half", 0.5, Some(0.9))];
        let mut trace = Vec::new();
        let verdict = compare(&rows, 3, "per second", |share, backend| {
            trace.push((*share, backend));
            Ok(match backend {
                Backend::RawPlain => 10.0,
                Backend::Roundel => 10.0 * share,
            })
        });
        assert_eq!(verdict.unwrap(), Verdict::Fail);
        use Backend::{RawPlain, Roundel};
        let orders = [
            [RawPlain, Roundel, Roundel],
            [Roundel, Roundel, RawPlain],
            [Roundel, RawPlain, Roundel],
        ];
        let expected: Vec<_> = orders
            .iter()
            .flat_map(|order| [1.0, 0.5].map(|share| order.map(|backend| (share, backend))))
            .flatten()
            .collect();
        assert_eq!(trace, expected);
    }

    /// A row without a bar is shown and decides nothing.
    #[test]
    fn a_row_without_a_bar_cannot_fail() {
        let rows = [Row {
            name: "shown".to_owned(),
            parameter: (),
            bar: None,
        }];
        let verdict = compare(&rows, 1, "per second", |(), backend| {
            Ok(if backend == Backend::RawPlain {
                10.0
            } else {
                1.0
            })
        });
        assert_eq!(verdict.unwrap(), Verdict::Pass);
    }
}
