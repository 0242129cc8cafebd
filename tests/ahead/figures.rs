//! XLA's figures of the memory of the programs by which the estimate of emitted modules is calibrated.

use std::sync::Mutex;

use meshloom::hlo::PlatformKind;
use support::calibration::{Figures, programs, table, write_table};

/// Compiles the programs that the table lacks, and writes their figures into it.
pub fn written(kind: PlatformKind) {
    static TABLE: Mutex<()> = Mutex::new(());
    for program in programs() {
        let key = (program.name.to_owned(), kind.name().to_owned());
        if table().contains_key(&key) {
            continue;
        }
        let figures = Figures::from(program.compile(kind));
        let _guard = TABLE.lock().expect("the table");
        let mut table = table();
        table.insert(key, figures);
        write_table(&table);
    }
}

/// Some figures are still those of the plugin.
pub fn kept(kind: PlatformKind) {
    let table = table();
    for program in
        programs().iter().filter(|program| ["two layers, data=4,tensor=2", "layers in a loop"].contains(&program.name))
    {
        let kept = &table[&(program.name.to_owned(), kind.name().to_owned())];
        assert_eq!(&Figures::from(program.compile(kind)), kept, "{} for {}", program.name, kind.name());
    }
}
