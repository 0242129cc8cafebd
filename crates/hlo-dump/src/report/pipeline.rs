//! Pipelines: which stage works on which microbatch in each iteration of a loop, as its ring of permutes suggests.

use std::fmt::Write;

use super::html::{escape, section};
use super::{Report, timeline};
use crate::output::human_bytes;

/// A loop that hands values on from stage to stage.
#[derive(Clone, Debug, Default)]
pub struct PipelineLoop {
    /// Name of the loop.
    pub name: String,
    /// How often it goes around.
    pub iterations: usize,
    /// Whether values go to the stage before: a backward pass does that.
    pub backward: bool,
    /// Bytes that a device hands on in one iteration.
    pub bytes: Option<u64>,
    /// The source line of the permute.
    pub source: String,
}

impl PipelineLoop {
    /// Microbatches, if each iteration begins one until all have begun and the last ends at the last stage.
    pub fn microbatches(&self, stages: usize) -> usize {
        (self.iterations + 1).saturating_sub(stages)
    }

    /// The microbatch at a stage in an iteration, both counted from 0; none where the stage waits. What goes backward
    /// begins at the last stage with the last microbatch.
    pub fn microbatch(&self, stages: usize, stage: usize, iteration: usize) -> Option<usize> {
        let count = self.microbatches(stages);
        let late = if self.backward { (stages - 1).checked_sub(stage)? } else { stage };
        let number = iteration.checked_sub(late).filter(|&number| number < count)?;
        Some(if self.backward { count - 1 - number } else { number })
    }
}

/// Loops that hand values on along one mesh axis, in the order of the program.
#[derive(Clone, Debug, Default)]
pub struct Pipeline {
    pub axis: String,
    pub stages: usize,
    pub loops: Vec<PipelineLoop>,
}

impl Pipeline {
    /// The part of all iterations of all stages in which a stage has no microbatch.
    pub fn bubble(&self) -> f64 {
        let slots: usize = self.loops.iter().map(|it| it.iterations * self.stages).sum();
        let used: usize = self.loops.iter().map(|it| it.microbatches(self.stages) * self.stages).sum();
        1.0 - used as f64 / slots.max(1) as f64
    }

    /// `6 microbatches`, or each number where loops differ.
    fn microbatches(&self) -> String {
        let mut counts: Vec<usize> = self.loops.iter().map(|it| it.microbatches(self.stages)).collect();
        counts.dedup();
        counts.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
    }
}

const WIDTH: f64 = 1120.0;
const LEFT: f64 = 82.0;
const TOP: f64 = 40.0;
/// Larger schedules are cut off: nobody reads more cells.
const MOST_COLUMNS: usize = 256;
const MOST_ROWS: usize = 64;

pub fn render(report: &Report) -> String {
    // Nothing needs to be inferred of what is known.
    if let Some(timeline) = &report.timeline {
        return timeline::render(timeline);
    }
    if report.pipelines.is_empty() {
        return String::new();
    }
    let mut body = String::new();
    for pipeline in &report.pipelines {
        // Writing to a string does not fail.
        let _ = writeln!(
            body,
            "<p class=\"facts\"><b>{} stages</b> over <b>{}</b>, <b>{} microbatches</b>; bubbles are <b>{:.1} %</b> of all stage slots.</p>",
            pipeline.stages,
            escape(&pipeline.axis),
            pipeline.microbatches(),
            100.0 * pipeline.bubble()
        );
        body.push_str(&legend(pipeline));
        body.push_str(&grid(pipeline));
        pipeline.loops.iter().for_each(|found| body.push_str(&describe(pipeline, found)));
    }
    let lead = "<b>Inferred.</b> A loop that hands values to the next device of one mesh axis in every iteration is read as a pipeline that \
                fills and drains: stage <i>s</i> works on microbatch <i>t - s</i> in iteration <i>t</i>. The program says who sends to whom \
                and how often, not which microbatch it is.";
    section("pipeline", "Pipeline", lead, &body)
}

fn legend(pipeline: &Pipeline) -> String {
    let mut items = Vec::new();
    if pipeline.loops.iter().any(|it| !it.backward) {
        items.push(("forward", "hands on to the next stage"));
    }
    if pipeline.loops.iter().any(|it| it.backward) {
        items.push(("backward", "hands back to the stage before"));
    }
    items.push(("bubble", "bubble"));
    let item = |(class, text): (&str, &str)| format!("<li><i class=\"{class}\"></i>{text}</li>");
    format!("<ul class=\"legend\">{}</ul>\n", items.into_iter().map(item).collect::<String>())
}

fn describe(pipeline: &Pipeline, found: &PipelineLoop) -> String {
    let way = if found.backward { "backward" } else { "forward" };
    let bytes = found.bytes.map_or("?".to_owned(), human_bytes);
    let at = if found.source.is_empty() { String::new() } else { format!(" <code>{}</code>", escape(&found.source)) };
    format!(
        "<p class=\"note\"><code>{}</code>: {way}, {} iterations = {} microbatches + {} to fill and drain; {bytes} handed on in each.{at}</p>\n",
        escape(&found.name),
        found.iterations,
        found.microbatches(pipeline.stages),
        pipeline.stages - 1,
    )
}

/// Stages below each other, iterations side by side, loop after loop.
fn grid(pipeline: &Pipeline) -> String {
    const BETWEEN: f64 = 18.0;
    let rows = pipeline.stages.min(MOST_ROWS);
    let shown = |found: &PipelineLoop| found.iterations.min(MOST_COLUMNS);
    let columns: usize = pipeline.loops.iter().map(shown).sum();
    let space = WIDTH - LEFT - BETWEEN * (pipeline.loops.len() - 1) as f64;
    let width = (space / columns.max(1) as f64).min(56.0);
    let tall = if rows > 16 { 18.0 } else { 34.0 };
    let height = TOP + rows as f64 * tall + 8.0;
    let mut svg = format!(
        "<svg class=\"chart pipeline\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"microbatches by stage and iteration\">\n\
         <defs><pattern id=\"hatch\" width=\"7\" height=\"7\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">\
         <line x1=\"0\" y1=\"0\" x2=\"0\" y2=\"7\"/></pattern></defs>\n"
    );
    for stage in 0..rows {
        let y = TOP + (stage as f64 + 0.5) * tall + 4.0;
        let _ = writeln!(svg, "<text class=\"lane\" x=\"0\" y=\"{y:.1}\">{} {stage}</text>", escape(&pipeline.axis));
    }
    let mut x = LEFT;
    for found in &pipeline.loops {
        let _ = writeln!(
            svg,
            "<text class=\"title\" x=\"{x:.1}\" y=\"13\">{}</text>",
            if found.backward { "backward" } else { "forward" }
        );
        for iteration in 0..shown(found) {
            column(&mut svg, pipeline, found, iteration, (x, width, tall), rows);
            x += width;
        }
        x += BETWEEN;
    }
    svg.push_str("</svg>\n");
    let cut = pipeline.loops.iter().any(|it| it.iterations > MOST_COLUMNS) || pipeline.stages > MOST_ROWS;
    if cut {
        let _ = writeln!(
            svg,
            "<p class=\"note\">Only the first {MOST_COLUMNS} iterations and {MOST_ROWS} stages are drawn.</p>"
        );
    }
    svg
}

fn column(
    svg: &mut String,
    pipeline: &Pipeline,
    found: &PipelineLoop,
    iteration: usize,
    (x, width, tall): (f64, f64, f64),
    rows: usize,
) {
    let numbered = width >= 18.0 && tall >= 18.0;
    let every = if numbered { 1 } else { (30.0 / width).ceil() as usize };
    if iteration.is_multiple_of(every) {
        let _ = writeln!(svg, "<text class=\"tick middle\" x=\"{:.1}\" y=\"32\">{iteration}</text>", x + width / 2.0);
    }
    let count = found.microbatches(pipeline.stages).max(2);
    for stage in 0..rows {
        let y = TOP + stage as f64 * tall;
        let microbatch = found.microbatch(pipeline.stages, stage, iteration);
        let class = match microbatch {
            None => "bubble",
            Some(_) if found.backward => "backward",
            Some(_) => "forward",
        };
        // Later microbatches are stronger, so that the eye can follow one.
        let strength = microbatch.map_or(1.0, |number| 0.7 + 0.3 * number as f64 / (count - 1) as f64);
        let what = microbatch.map_or("bubble".to_owned(), |number| format!("microbatch {number}"));
        let _ = write!(
            svg,
            "<g><title>stage {stage}, iteration {iteration}: {what}</title><rect class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" \
             height=\"{:.1}\" rx=\"3\" style=\"opacity:{strength:.2}\"/>",
            x + 1.0,
            y + 1.0,
            (width - 2.0).max(0.5),
            tall - 2.0
        );
        if let Some(number) = microbatch.filter(|_| numbered) {
            let _ = write!(
                svg,
                "<text class=\"number\" x=\"{:.1}\" y=\"{:.1}\">{number}</text>",
                x + width / 2.0,
                y + tall / 2.0 + 4.5
            );
        }
        svg.push_str("</g>\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn microbatches_fill_and_drain() {
        let schedule = |backward| {
            let found = PipelineLoop { iterations: 5, backward, ..PipelineLoop::default() };
            let cell =
                |stage, iteration| found.microbatch(3, stage, iteration).map_or(".".to_owned(), |it| it.to_string());
            (0..3).map(|stage| (0..5).map(|iteration| cell(stage, iteration)).collect::<String>()).collect::<Vec<_>>()
        };
        assert_eq!(schedule(false), ["012..", ".012.", "..012"]);
        assert_eq!(schedule(true), ["..210", ".210.", "210.."]);
        let found = PipelineLoop { iterations: 9, ..PipelineLoop::default() };
        let pipeline = Pipeline { axis: "stage".into(), stages: 4, loops: vec![found] };
        assert!((pipeline.bubble() - 3.0 / 9.0).abs() < 1e-12);
    }
}
