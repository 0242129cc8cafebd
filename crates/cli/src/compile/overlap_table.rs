//! The tables of `compile --overlap`.

use indexmap::IndexMap;
use meshloom::analysis::{CollectiveOverlap, Hidden, ModuleOverlap};
use meshloom::hlo::table::Table;

use hlo_dump::collectives::{axes_of, axes_text, where_from};
use hlo_dump::output::{self, DIM, line, paint};
use hlo_dump::overlap::{by_exposed, share_text};

pub fn print(found: &ModuleOverlap, limit: usize) {
    let mut transfers: Vec<&CollectiveOverlap> = found.transfers.iter().collect();
    transfers.sort_by(|a, b| by_exposed(a, b));
    let table = Table::of(transfers)
        .text("collective", |it| {
            format!("{}{}", it.collective.kind.name(), if it.synchronous { "" } else { " (async)" })
        })
        .text("axes", |it| axes_text(&it.collective))
        .number("times", |it| output::amount(it.collective.executions))
        .number("bytes sent", |it| output::amount_of_bytes(it.collective.total_moved_bytes()))
        .number("transfer", |it| output::seconds(it.hidden.seconds))
        .number("exposed", |it| output::seconds(it.hidden.exposed_seconds))
        .number("waited for", |it| output::seconds(it.hidden.waited_seconds))
        .number("hidden", |it| share_text(it.hidden))
        .flexible("largest beside it", |it| match &it.largest_beside {
            Some(largest) => format!("{} %{}, {}", largest.op, largest.name, output::seconds(largest.seconds)),
            None => String::new(),
        })
        .flexible("where from", |it| where_from(&it.collective));
    output::table(table, limit);
    line("");
    let mut sums: IndexMap<String, Vec<Hidden>> = IndexMap::new();
    for transfer in &found.transfers {
        sums.entry(axes_of(&transfer.collective)).or_default().push(transfer.hidden);
    }
    let sums = sums.into_iter().map(|(axes, parts)| (axes, parts.len(), Hidden::sum(parts)));
    let table = Table::of(sums.chain([("all".to_owned(), found.transfers.len(), found.total)]))
        .text("over", |(axes, ..)| axes.clone())
        .number("collectives", |(_, count, _)| *count)
        .number("transfer", |(.., hidden)| output::seconds(hidden.seconds))
        .number("exposed", |(.., hidden)| output::seconds(hidden.exposed_seconds))
        .number("waited for", |(.., hidden)| output::seconds(hidden.waited_seconds))
        .number("hidden", |(.., hidden)| share_text(*hidden));
    output::table(table, 0);
    let (computing, waiting) = (output::seconds(found.computing_seconds), output::seconds(found.waiting_seconds));
    line(&format!("on {}, at peak rates: it computes for {computing}, and waits for {waiting}", found.chip));
    if found.loops_counted_once {
        line(&paint(DIM, "loops whose trip count is not known count once"));
    }
}
