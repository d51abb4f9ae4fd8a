//! The demo in the terminal: a bar for each family on a terminal, a line for each step elsewhere.
//! The board drives it. Everything goes to standard error; standard output is for the summary.

use std::io::IsTerminal;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::course::Course;

/// One line of a family: name, bar, step of steps, figures, time.
const BAR: &str = "{prefix:>10} {bar:24.cyan/blue} {pos:>2}/{len} steps  {msg}  {elapsed}";

/// The terminal's view of the run.
#[derive(Debug)]
pub enum Progress {
    /// Nothing is shown.
    Quiet,
    /// A line for each step.
    Lines,
    /// A bar for each family, by scenario.
    Bars(Vec<(String, ProgressBar)>),
}

impl Progress {
    /// Bars on a terminal, lines elsewhere.
    pub fn new(quiet: bool, courses: &[Course]) -> Self {
        if quiet {
            return Self::Quiet;
        }
        if !std::io::stderr().is_terminal() {
            return Self::Lines;
        }
        let all = MultiProgress::new();
        let style = ProgressStyle::with_template(BAR).unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = |course: &Course| {
            let bar = all.add(
                ProgressBar::new(u64::from(course.steps_max))
                    .with_prefix(course.family.clone())
                    .with_style(style.clone()),
            );
            bar.set_message("waits for its turn");
            (course.scenario.clone(), bar)
        };
        Self::Bars(courses.iter().map(bar).collect())
    }

    /// Something moved.
    pub fn show(&self, course: &Course) {
        let Self::Bars(bars) = self else { return };
        let Some((_, bar)) = bars.iter().find(|(scenario, _)| *scenario == course.scenario) else { return };
        if bar.position() == 0 && course.elapsed.as_secs() < 1 {
            bar.reset_elapsed();
        }
        bar.set_position(course.steps.len() as u64);
        bar.set_message(figures(course));
        if course.after.is_some() {
            bar.abandon();
        }
    }

    /// A step ended, or a measurement.
    pub fn step(&self, course: &Course) {
        self.show(course);
        if matches!(self, Self::Lines) {
            let (family, step, of, seconds) =
                (&course.family, course.steps.len(), course.steps_max, course.elapsed.as_secs_f64());
            eprintln!("{family}: step {step}/{of}, {}, {seconds:.0} s", figures(course));
        }
    }

    /// Leaves the bars as they are.
    pub fn finish(&self) {
        if let Self::Bars(bars) = self {
            bars.iter().for_each(|(_, bar)| bar.abandon());
        }
    }
}

/// What there is to say now.
fn figures(course: &Course) -> String {
    let mut parts = Vec::new();
    match (course.gain(), course.share_before(), course.share_after()) {
        (Some(gain), Some(before), Some(after)) => {
            parts.push(format!(
                "held-out {:.0} % -> {:.0} % ({:+.0} points)",
                100.0 * before.value,
                100.0 * after.value,
                100.0 * gain.value
            ));
        }
        (_, Some(before), _) => parts.push(format!("held-out before {:.0} %", 100.0 * before.value)),
        _ => parts.push("measuring".to_owned()),
    }
    if let Some((reward, exact)) = course.moving() {
        parts.push(format!("reward {reward:.2}, exact {:.0} %", 100.0 * exact));
    }
    parts.push(format!("head {}", course.head_sequence));
    if let Some(lag) = course.steps.last().and_then(|view| view.lag) {
        parts.push(format!("lag {lag:.1}"));
    }
    parts.join(", ")
}
