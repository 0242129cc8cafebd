use super::*;

/// Prints a figure for each table; see the facts.
#[test]
fn figures() {
    for (f, b, w, pieces) in [(1.0, 1.0, 1.0, 1), (1.0, 2.0, 1.0, 1), (1.0, 2.0, 1.0, 4), (1.0, 1.1, 0.93, 4)] {
        for (s, m) in [(4, 8), (4, 16), (8, 16)] {
            let costs = Costs::even(f, b, w);
            let show = |name: &str, table: Result<Table, ScheduleError>| {
                let t = table.unwrap();
                let x = t.simulate(&costs).unwrap();
                Columns::of(&t).unwrap().replay(&t).unwrap();
                println!(
                    "{f},{b},{w}/{pieces} S{s} M{m} {name}: {:.1} {:.1} ({}) ticks {} {:?}",
                    100.0 * x.bubble_lockstep,
                    100.0 * x.bubble_near,
                    x.peak(),
                    t.ticks.len(),
                    Columns::of(&t).unwrap().slots
                );
                t
            };
            show("gpipe", Table::gpipe(s, m, 1));
            show("1f1b", Table::one_f_one_b(s, m));
            show("interleaved", Table::interleaved(s, m, 2, &costs));
            show("zbh1", Table::zb_h1(s, m, pieces, &costs));
            let t = show("zbv", Table::zb_v(s, m, pieces, &costs));
            let shape = Shape { chunks: 2, split: true, pieces, ..Shape::new(s, m) };
            for cap in [s as f64, s as f64 + 0.5, s as f64 + 1.0, 1.5 * s as f64] {
                let start = std::time::Instant::now();
                let t = show(&format!("auto {cap}"), Table::auto(&shape, &costs, cap));
                println!("   {:?} {:?}", t.shape.placement, start.elapsed());
            }
            if s == 4 && m == 8 {
                println!("{t}");
            }
        }
    }
}
