//! The learning curve as inline SVG: training reward and exact share by step, and the held-out shares
//! before and after with their intervals.
//! The page calls it. Colours are classes of the page's style sheet, so that they follow light and dark.

use std::fmt::Write as _;

use super::course::Course;
use super::interval::Share;

/// Size of the drawing in its own units, and the frame of the plot within it.
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 66.0;
const RIGHT: f64 = 632.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 244.0;
/// Room for a measurement and its label beside the steps.
const LANE: f64 = 104.0;
/// Most labels that the axis of steps carries.
const TICKS_MAX: usize = 8;

/// The chart of one course.
pub fn learning_curve(course: &Course) -> String {
    let last = course.steps.len().max(1);
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"Learning curve: reward and exact share of training answers by step, held-out share before and after\">"
    );
    axes(&mut svg, last);
    let points = |value: fn(&super::course::StepView) -> Option<f64>| -> Vec<(usize, f64)> {
        course.steps.iter().enumerate().filter_map(|(index, view)| Some((index + 1, value(view)?))).collect()
    };
    line(&mut svg, "reward", &points(|view| view.reward), last);
    line(&mut svg, "exact", &points(|view| view.exact), last);
    for (name, share, at) in
        [("before", course.share_before(), LEFT + LANE / 2.0), ("after", course.share_after(), RIGHT - LANE / 2.0)]
    {
        if let Some(share) = share {
            held_out(&mut svg, name, share, at);
        }
    }
    svg.push_str("</svg>");
    svg
}

/// Steps 1 to `last` lie between the lanes of the two measurements.
fn x(step: usize, last: usize) -> f64 {
    let (first, width) = (LEFT + LANE, RIGHT - LEFT - 2.0 * LANE);
    if last > 1 { first + width * (step as f64 - 1.0) / (last as f64 - 1.0) } else { first + width / 2.0 }
}

fn y(share: f64) -> f64 {
    BOTTOM - (BOTTOM - TOP) * share.clamp(0.0, 1.0)
}

/// Writing to a string cannot fail, so the results of `write!` in this file are dropped.
fn axes(svg: &mut String, last: usize) {
    for quarter in 0..=4 {
        let share = f64::from(quarter) / 4.0;
        let at = y(share);
        let _ = write!(svg, "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>");
        let _ = write!(
            svg,
            "<text class=\"tick end\" x=\"{:.1}\" y=\"{:.1}\">{:.0} %</text>",
            LEFT - 6.0,
            at + 5.0,
            100.0 * share
        );
    }
    let stride = last.div_ceil(TICKS_MAX);
    for step in (1..=last).filter(|step| (step - 1) % stride == 0) {
        let _ =
            write!(svg, "<text class=\"tick mid\" x=\"{:.1}\" y=\"{:.1}\">{step}</text>", x(step, last), BOTTOM + 22.0);
    }
    let _ = write!(
        svg,
        "<text class=\"tick mid\" x=\"{:.1}\" y=\"{:.1}\">step of the learner</text>",
        (LEFT + RIGHT) / 2.0,
        BOTTOM + 46.0
    );
}

fn line(svg: &mut String, class: &str, points: &[(usize, f64)], last: usize) {
    let path: Vec<String> =
        points.iter().map(|(step, value)| format!("{:.1},{:.1}", x(*step, last), y(*value))).collect();
    let _ = write!(svg, "<polyline class=\"line {class}\" points=\"{}\"/>", path.join(" "));
    for (step, value) in points {
        let (at_x, at_y) = (x(*step, last), y(*value));
        let _ = write!(
            svg,
            "<circle class=\"dot {class}\" cx=\"{at_x:.1}\" cy=\"{at_y:.1}\" r=\"3\"><title>step {step}: {class} {value:.3}</title></circle>"
        );
    }
}

fn held_out(svg: &mut String, name: &str, share: Share, at: f64) {
    let [low, high] = share.interval.map(y);
    let _ = write!(svg, "<g class=\"held\"><title>held-out {name}: {:.1} %</title>", 100.0 * share.value);
    let _ = write!(svg, "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{low:.1}\" y2=\"{high:.1}\"/>");
    for end in [low, high] {
        let _ = write!(svg, "<line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{end:.1}\" y2=\"{end:.1}\"/>", at - 5.0, at + 5.0);
    }
    let middle = y(share.value);
    let _ = write!(svg, "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"9\" height=\"9\"/></g>", at - 4.5, middle - 4.5);
    let _ = write!(svg, "<text class=\"tick mid\" x=\"{at:.1}\" y=\"{:.1}\">{name}</text>", BOTTOM + 22.0);
}
