# Shortcuts; `just` lists them. Nothing needs just: each recipe is one command.

_default:
    @just --list --unsorted

# Trains the default decoder; flags follow, as in `just train --steps 20`
train *flags:
    cargo run --release --bin meshloom -- train {{flags}}

# Runs hlo-dump, as in `just dump collectives examples/configs/default.toml`
dump *arguments:
    cargo run --release --bin hlo-dump -- {{arguments}}

# Runs the small tier of the tests
test:
    cargo test --release --workspace

# Runs one test program, as in `just test-program ops clamp`
test-program program *filter:
    cargo test --release --test {{program}} {{filter}}

# Writes the snapshots that changed; review each difference
snapshots program *filter:
    INSTA_UPDATE=always cargo test --release --test {{program}} {{filter}}

# Writes the generated pages of docs/
docs-tables:
    MESHLOOM_UPDATE=1 cargo test --release --test ops docs
    MESHLOOM_WRITE_DOCS=1 cargo test --release --test hlo estimates_are_xlas_figures

# Checks formatting and lints
lint:
    cargo fmt --all --check
    cargo clippy --release --workspace --all-targets -- -D warnings

# Opens the documentation
doc:
    cargo doc --workspace --no-deps --open

# Checks licences, advisories and spelling
audit:
    cargo deny check
    typos

# Runs the full tier of the tests, part by part
full *part:
    .ci/run --all {{part}}

# Runs every check, as CI does
ci:
    .ci/run
