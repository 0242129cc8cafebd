//! `hlo-dump report`: the page in a browser. It opens headless Chromium, without a network, on pages made of modules
//! under `tests/foreign` and of a run config.
//!
//! Tests that need a browser show as ignored until they are asked for: `cargo test --test hlo -- --ignored
//! dump::report` runs them, and they fail if there is no browser. The browser is that of `MESHLOOM_TEST_BROWSER`, or a
//! `chromium` in PATH; `apt-get install chromium` installs it, as `.ci/run` does.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use support::cases::cases;
use support::counts::process;

use crate::dump::command::{check_refused, prints};
use tempfile::TempDir;

/// A page, as `hlo-dump report` writes it.
fn page(arguments: &[&str]) -> String {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("report.html");
    prints(&[&["report"], arguments, &["--output", path.to_str().expect("a path")]].concat());
    fs::read_to_string(&path).expect("a page")
}

fn pipeline_page() -> String {
    page(&["tests/foreign/pipeline.tpu.pb", "--mesh", "data=2,stage=4", "--chip", "v5e"])
}

// Tests of what can be seen without a browser.

/// The text of the elements that begin with a tag.
fn texts<'a>(page: &'a str, start: &'a str, end: &'a str) -> impl Iterator<Item = &'a str> {
    page.split(start).skip(1).filter_map(move |rest| rest.split_once(end).map(|(text, _)| text))
}

#[test]
fn nothing_is_loaded_from_anywhere() {
    for arguments in
        [["tests/foreign/moe.optimized.txt", "--mesh", "data=2,expert=4"].as_slice(), &["examples/configs/fsdp8.toml"]]
    {
        let page = page(arguments);
        assert!(page.contains("default-src 'none'"));
        for loads in [" src=", "<link", "<iframe", "<img", "@import", "url(h", "fetch(", "XMLHttpRequest", "import("] {
            assert!(!page.contains(loads), "{loads}");
        }
        // The one address is a name: that of SVG.
        let mut addresses =
            page.match_indices("://").map(|(at, _)| &page[at.saturating_sub(5)..(at + 30).min(page.len())]);
        assert!(addresses.all(|address| address.contains("://www.w3.org/2000/svg")), "an address is in the page");
        let links: Vec<&str> = texts(&page, "href=\"", "\"").collect();
        assert!(links.len() >= 5 && links.iter().all(|link| link.starts_with('#')), "{links:?}");
    }
}

/// Neighbours that exchange the borders of their parts in a loop are not a pipeline.
#[test]
fn a_halo_is_no_pipeline() {
    let page = page(&["tests/foreign/scan_remat.tpu.txt", "--mesh", "data=2,fsdp=4"]);
    assert!(page.contains("collective-permute") && !page.contains("id=\"pipeline\""));
}

#[test]
fn the_pipeline_is_drawn() {
    let page = pipeline_page();
    // 6 microbatches through 4 stages, there and back: 2 * 4 * 6 of 2 * 4 * 9 slots are used.
    let cells = |class: &str| page.matches(&format!("<rect class=\"{class}\"")).count();
    assert_eq!((cells("forward"), cells("backward"), cells("bubble")), (24, 24, 24));
    assert!(page.contains("<b>4 stages</b> over <b>stage</b>, <b>6 microbatches</b>; bubbles are <b>33.3 %</b>"));
    assert!(page.contains("Inferred."));
    assert!(page.contains("<title>stage 0, iteration 0: microbatch 0</title>"));
    assert!(page.contains("<title>stage 3, iteration 3: microbatch 0</title>"));
    assert!(page.contains("<title>stage 3, iteration 2: bubble</title>"));
    // Without a mesh, the devices' own numbers show it.
    let nameless = self::page(&["tests/foreign/pipeline.gpu.txt", "--chip", "h100"]);
    assert!(nameless.contains("<b>4 stages</b> over <b>device</b>, <b>6 microbatches</b>"));
    for other in ["scan_remat.gpu.pb", "moe.partitioned.pb", "fsdp_mlp.optimized.pb"] {
        let other = self::page(&[&format!("tests/foreign/{other}")]);
        assert!(!other.contains("id=\"pipeline\""), "no pipeline");
    }
}

fn config_page(overrides: &[&str]) -> String {
    let set = overrides.iter().flat_map(|text| ["--set", text]);
    page(&["examples/configs/default.toml"].into_iter().chain(set).collect::<Vec<_>>())
}

/// The schedule of a run config is known.
#[test]
fn the_schedule_of_a_config_is_drawn() {
    let page = config_page(&["mesh.axes=stage=2,fsdp=4", "pipeline.repeats=2", "remat.policy=full"]);
    let cells = |class: &str| page.matches(&format!("<rect class=\"{class}\"")).count();
    // 4 microbatches through 2 stages in 2 repeats, there and back, with one bubble of each stage each way.
    assert_eq!((cells("forward"), cells("backward"), cells("bubble")), (16, 16, 4));
    // Both repeats are gathered each way; of one each way, while the other runs.
    assert_eq!((cells("whole"), cells("gather"), cells("scatter")), (4, 2, 2));
    assert!(!page.contains("Inferred."));
    assert!(page.contains("<title>stage 1, iteration 5, forward: microbatch 0 in repeat 1</title>"));
    assert!(page.contains("<title>stage 0, iteration 8, backward: bubble</title>"));
    assert!(page.contains("including <b>1 bubble</b> (11.1 %)"));
}

const PROFILE: &str = "tests/foreign/profile/scan_remat.cpu.xplane.pb";

/// The profile has the program, so it is all that is needed; given beside the same module it says the same.
#[test]
fn a_profile_is_read_with_its_program() {
    let alone = page(&[PROFILE, "--mesh", "data=2,fsdp=4"]);
    assert!(alone.contains("program of a profile, 8 devices, data=2,fsdp=4"));
    assert!(alone.contains("Measured: 2 runs on 8 devices; "));
    let beside = page(&["tests/foreign/scan_remat.optimized.pb", "--profile", PROFILE]);
    assert!(beside.contains("Measured: 2 runs on 8 devices; "));
    // All that ran is of this module, and has its name.
    assert!(!alone.contains("of all time of instructions is that of"));
    let other = page(&["tests/foreign/moe.optimized.pb", "--profile", PROFILE]);
    assert!(other.contains("No event of the profile names an instruction of this module"));
    assert!(!other.contains("measured-collective-rows"));
}

#[test]
fn what_is_no_profile_is_said() {
    let refused = |arguments: &[&str], expected: &str| {
        check_refused(&[&["report"], arguments, &["--output", "/dev/null"]].concat(), expected);
    };
    let module = "tests/foreign/moe.optimized.pb";
    refused(&[module, "--profile", "Cargo.toml"], "Cargo.toml: it is no profile");
    let expected = "--module nothing: the profile has no such program; it has jit_scan_remat(0)";
    refused(&[PROFILE, "--module", "nothing"], expected);
    let bytes = fs::read(support::path(PROFILE)).expect("the profile");
    let folder = TempDir::new().expect("a folder");
    let cut = folder.path().join("cut.xplane.pb");
    fs::write(&cut, &bytes[..bytes.len() / 2]).expect("written");
    refused(&[module, "--profile", cut.to_str().expect("a path")], "is it complete?");
}

#[test]
fn names_of_a_program_are_no_markup() {
    let hostile = "</script><script>document.title='bad'</script><img src=x onerror=alert(1)>";
    let text = format!(
        "HloModule m\n\nENTRY e {{\n  p = f32[4]{{0}} parameter(0), metadata={{op_name=\"{hostile}/x\"}}\n  ROOT n = f32[4]{{0}} negate(p), \
         metadata={{op_name=\"a/{hostile}/neg\" source_file=\"{hostile}\" source_line=3}}\n}}\n"
    );
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("hostile.txt");
    fs::write(&path, text).expect("written");
    let page = page(&[path.to_str().expect("a path")]);
    assert!(!page.contains("<img") && !page.contains("<script>document"));
    assert_eq!(page.matches("</script>").count(), 3, "the script, and the data of the curve and of the graph");
}

/// A module of so many layers that are written out, each with ten instructions in scopes of its own.
fn large_module(layers: usize) -> String {
    let mut text = String::from(
        "HloModule large, num_partitions=8\n\n%add (a: f32[], b: f32[]) -> f32[] {\n  %a = f32[] parameter(0)\n  %b = f32[] parameter(1)\n  \
         ROOT %c = f32[] add(%a, %b)\n}\n\nENTRY %main (x: f32[64,64]) -> f32[64,64] {\n  %x0 = f32[64,64]{1,0} parameter(0)\n",
    );
    for layer in 0..layers {
        let metadata = |op: &str| format!("metadata={{op_name=\"jit(step)/layer_{layer}/block_{}/{op}\"}}", layer % 7);
        let mut value = format!("%x{layer}");
        for index in 0..8 {
            let next = format!("%t{layer}_{index}");
            let _ = writeln!(text, "  {next} = f32[64,64]{{1,0}} tanh({value}), {}", metadata("tanh"));
            value = next;
        }
        let _ = writeln!(
            text,
            "  %r{layer} = f32[64,64]{{1,0}} all-reduce({value}), channel_id={}, replica_groups={{{{0,1,2,3}},{{4,5,6,7}}}}, \
             use_global_device_ids=true, to_apply=%add, {}",
            layer + 1,
            metadata("psum")
        );
        let root = if layer + 1 == layers { "ROOT " } else { "" };
        let _ = writeln!(
            text,
            "  {root}%x{} = f32[64,64]{{1,0}} add(%r{layer}, %x{layer}), {}",
            layer + 1,
            metadata("add")
        );
    }
    text.push_str("}\n");
    text
}

#[test]
fn a_large_module_is_a_small_page() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("large.txt");
    fs::write(&path, large_module(10_000)).expect("written");
    let page = page(&[path.to_str().expect("a path"), "--mesh", "data=2,fsdp=4"]);
    assert!(page.contains("<strong>100,004</strong>"), "all instructions are counted");
    assert!(page.contains("sent by one device in 10,000 runs"));
    assert!(page.contains("9,600 more rows are not on this page"));
    assert!(page.contains("layer_*") && !page.contains("\"layer_7\""), "the graph has one box for all layers");
    assert!(page.len() < 1 << 20, "{} bytes", page.len());
}

// In a browser.

fn browser() -> PathBuf {
    if let Some(path) = env::var_os("MESHLOOM_TEST_BROWSER").filter(|path| !path.is_empty()) {
        return path.into();
    }
    let folders = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&folders)
        .flat_map(|folder| ["chromium", "chromium-browser", "google-chrome"].map(|name| folder.join(name)))
        .find(|path| path.is_file())
        .expect("there is no browser; apt-get install chromium, or set MESHLOOM_TEST_BROWSER")
}

/// The document of a page after its script and another have run, in a browser that resolves no name; and what they
/// wrote to the console.
fn opened(browser: &Path, page: &str, script: &str) -> (String, String) {
    opened_with(browser, page, script, &[])
}

fn opened_with(browser: &Path, page: &str, script: &str, flags: &[&str]) -> (String, String) {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("page.html");
    let script = format!(
        "<script>try {{ document.body.dataset.found = JSON.stringify((() => {{ {script} }})()); }} catch (error) {{ console.error(error); }}\
         </script></body>"
    );
    fs::write(&path, page.replace("</body>", &script)).expect("written");
    let at = |name: &str| folder.path().join(name);
    let file = |name: &str| Stdio::from(fs::File::create(at(name)).expect("a file"));
    let mut running = process(browser)
        .args([
            "--headless",
            // It runs as root in CI, and opens nothing but this page.
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            "--enable-logging=stderr",
            "--window-size=1280,2400",
            "--virtual-time-budget=4000",
            "--dump-dom",
        ])
        .args(flags)
        .arg(format!("--user-data-dir={}", at("profile").display()))
        .arg(format!("file://{}", path.display()))
        .env("HOME", folder.path())
        .stdout(file("document"))
        .stderr(file("log"))
        .spawn()
        .unwrap_or_else(|error| panic!("{}: {error}", browser.display()));
    let text = |name: &str| String::from_utf8_lossy(&fs::read(at(name)).expect("readable")).into_owned();
    let started = Instant::now();
    while running.try_wait().expect("its state").is_none() {
        // A browser that hangs is a failure, not a test without an end.
        if started.elapsed() > Duration::from_secs(180) {
            let _ = running.kill();
            let _ = running.wait();
            panic!("{} does not end: {}", browser.display(), text("log"));
        }
        sleep(Duration::from_millis(20));
    }
    let (document, log) = (text("document"), text("log"));
    assert!(document.contains("</html>"), "{}: {log}", browser.display());
    let console: Vec<&str> = log.lines().filter(|line| line.contains("CONSOLE")).collect();
    (document, console.join("\n"))
}

/// Returns the value that the script of a test gave back.
fn found(document: &str) -> serde_json::Value {
    let text = texts(document, "data-found=\"", "\"").next().unwrap_or_else(|| panic!("the script gave nothing"));
    serde_json::from_str(&text.replace("&quot;", "\"").replace("&amp;", "&"))
        .unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
#[ignore = "needs a browser: --ignored asks for it"]
fn a_browser_shows_every_section() {
    let browser = browser();
    let sections = ["step", "collectives", "memory", "cost", "graph", "shardings"];
    let own = config_page(&["mesh.axes=stage=2,fsdp=4", "pipeline.repeats=2", "remat.policy=full"]);
    for (page, pipeline) in [(pipeline_page(), true), (own, true), (page(&["examples/configs/fsdp8.toml"]), false)] {
        let (document, console) = opened(
            &browser,
            &page,
            "return [...document.querySelectorAll('section')].map(it => [it.id, it.getBoundingClientRect().height > 60, it.scrollWidth <= \
             it.clientWidth + 1]).concat([['ready', document.documentElement.dataset.ready === 'yes', document.body.scrollWidth <= 1280]]);",
        );
        assert_eq!(console, "", "the console is empty");
        let shown = found(&document);
        let shown: Vec<_> = shown.as_array().expect("a list").iter().collect();
        let has = |id: &str| shown.iter().any(|it| it[0] == id && it[1] == true);
        assert!(sections.into_iter().chain(["ready"]).all(has), "{shown:?}");
        assert_eq!(has("pipeline"), pipeline);
        assert!(shown.iter().all(|it| it[2] == true), "something is wider than the page: {shown:?}");
    }
}

/// In the full tier the program has 50 MB of text. The test prints how long the page takes to open, the browser's start
/// included.
#[test]
#[ignore = "needs a browser: --ignored asks for it"]
fn a_large_program_opens_on_a_screen_and_on_a_phone() {
    let (browser, folder) = (browser(), TempDir::new().expect("a folder"));
    let path = folder.path().join("large.txt");
    for layers in cases("hlo large page", 1, [1_000, 38_000]) {
        let text = large_module(layers);
        fs::write(&path, &text).expect("written");
        let page = page(&[path.to_str().expect("a path"), "--mesh", "data=2,fsdp=4"]);
        for width in [1280, 390] {
            let (script, started) =
                ("return [document.documentElement.dataset.ready, document.body.scrollWidth];", Instant::now());
            let (document, console) = opened_with(&browser, &page, script, &[&format!("--window-size={width},2400")]);
            let (taken, shown) = (started.elapsed().as_secs_f64(), found(&document));
            println!("{} bytes of text, {} of page, {width} pixels: {taken:.1} s", text.len(), page.len());
            assert_eq!((console.as_str(), &shown[0]), ("", &"yes".into()), "{shown}");
            // Chromium without a window is at least 500 pixels wide.
            assert!(shown[1].as_u64().is_some_and(|found| found <= width.max(500)), "wider than {width}: {shown}");
        }
    }
}

#[test]
#[ignore = "needs a browser: --ignored asks for it"]
fn numbers_are_those_counted_by_hand() {
    let browser = browser();
    // See tests/foreign/expected.toml: bytes and executions of each collective of this module.
    let script = "return [...document.querySelectorAll('#collective-rows tbody tr')].map(row => [row.cells[0].textContent, \
                  row.cells[1].textContent, ...[2, 3, 4].map(at => Number(row.cells[at].dataset.v))]);";
    let (document, console) = opened(&browser, &pipeline_page(), script);
    assert_eq!(console, "");
    let expected = serde_json::json!([
        ["collective-permute -1 (async)", "stage", 384, 9, 3456],
        ["all-reduce", "data", 2304, 1, 2304],
        ["collective-permute +1 (async)", "stage", 192, 9, 1728],
        ["all-reduce", "data,stage", 4, 1, 7],
    ]);
    assert_eq!(found(&document), expected);
    // 7495 bytes in all.
    assert!(
        document.contains("<span>moved</span><strong>7.32 KiB</strong><small>sent by one device in 20 runs</small>")
    );
}

#[test]
#[ignore = "needs a browser: --ignored asks for it"]
fn a_browser_shows_what_a_profile_measured() {
    let browser = browser();
    let script = "return [...document.querySelectorAll('#measured-collective-rows tbody tr')].map(row => \
                  [row.cells[0].textContent, row.cells[1].textContent, Number(row.cells[5].dataset.v), \
                  [2, 3, 4, 6].every(at => Number(row.cells[at].dataset.v) > 0)]);";
    let (document, console) = opened(&browser, &page(&[PROFILE, "--mesh", "data=2,fsdp=4"]), script);
    assert_eq!(console, "");
    // Two runs on 8 devices, of 5 layers: each collective in a loop has 80 events, the one of the loss 16. All of them
    // have a measured and an estimated time.
    let mut rows: Vec<String> = found(&document).as_array().expect("rows").iter().map(ToString::to_string).collect();
    rows.sort();
    let expected = [
        r#"["all-gather","fsdp",80,true]"#,
        r#"["all-gather","fsdp",80,true]"#,
        r#"["all-gather","fsdp",80,true]"#,
        r#"["all-gather","fsdp",80,true]"#,
        r#"["all-reduce","data",80,true]"#,
        r#"["all-reduce","data,fsdp",16,true]"#,
        r#"["all-reduce","fsdp",80,true]"#,
    ];
    assert_eq!(rows, expected);
}

/// The run has 8 virtual devices and a small model; the full tier uses one of 100 million parameters.
#[test]
#[ignore = "needs a browser: --ignored asks for it"]
fn a_browser_shows_the_steps_of_a_run() {
    let browser = browser();
    let folder = TempDir::new().expect("a folder");
    let small = ["model.layers=2", "model.embed=32", "model.heads=2", "model.kv_heads=2", "model.mlp=32"];
    let small = [&small[..], &["model.head_dim=16", "model.seq=16", "train.batch=8"]].concat();
    let mut arguments = vec!["train", "--steps", "20", "--sample", "0", "--profile-steps", "18..20", "--profile"];
    arguments.push(folder.path().to_str().expect("a path"));
    match support::cases::every_case("dump steps of a run") {
        true => arguments.extend(["--config", "examples/configs/100m.toml"]),
        false => arguments.extend(small.into_iter().flat_map(|key| ["--set", key])),
    }
    let mut command = process(support::program::hlo_dump().with_file_name("meshloom"));
    let output = command.args(&arguments).current_dir(support::path("")).output().expect("meshloom runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let file = said.lines().find_map(|line| line.strip_prefix("profile: ")).expect("the profile's name");
    let script = "return [...document.querySelectorAll('#measured-call-rows tbody tr')].map(row => \
                  [row.cells[0].textContent, Number(row.cells[1].dataset.v) > 0]);";
    let page = page(&[file, "--mesh", "data=2,fsdp=4"]);
    assert!(page.contains("program of a profile, 8 devices, data=2,fsdp=4"));
    let (document, console) = opened(&browser, &page, script);
    assert_eq!(console, "");
    let steps = [18, 19, 20].map(|step| serde_json::json!([format!("step {step}"), true]));
    assert_eq!(found(&document), serde_json::json!(steps));
}

#[test]
#[ignore = "needs a browser: --ignored asks for it"]
fn tables_filter_and_sort() {
    let browser = browser();
    let script = "
        const table = document.getElementById('collective-rows'), rows = () => [...table.tBodies[0].rows];
        const names = () => rows().filter(row => !row.hidden).map(row => row.cells[0].textContent);
        const filter = document.querySelector('input[data-table=\"collective-rows\"]'), all = names().length;
        filter.value = 'all-to-all backward'; filter.dispatchEvent(new Event('input'));
        const none = names().length;
        filter.value = 'ALL-TO-ALL transpose'; filter.dispatchEvent(new Event('input'));
        const two = names(), count = document.getElementById('collective-rows-count').textContent;
        filter.value = ''; filter.dispatchEvent(new Event('input'));
        const sent = () => rows().map(row => Number(row.cells[4].dataset.v));
        const header = table.tHead.rows[0].cells[4];
        header.click(); const down = sent(); header.click(); const up = sent();
        return { all, none, two, count, down, up, mark: header.getAttribute('aria-sort') };";
    let (document, console) =
        opened(&browser, &page(&["tests/foreign/moe.optimized.txt", "--mesh", "data=2,expert=4"]), script);
    assert_eq!(console, "");
    let found = found(&document);
    assert_eq!((&found["all"], &found["none"]), (&7.into(), &0.into()), "{found}");
    assert_eq!(found["two"], serde_json::json!(["all-to-all", "all-to-all"]));
    assert_eq!(found["count"], "2 found, 7 of 7");
    // See tests/foreign/expected.toml: 3 * 3072, 3 * 10240, 3 * 896, 7.
    assert_eq!(found["down"], serde_json::json!([30720, 9216, 9216, 9216, 9216, 2688, 7]));
    assert_eq!(found["up"], serde_json::json!([7, 2688, 9216, 9216, 9216, 9216, 30720]));
    assert_eq!(found["mark"], "ascending");
}

#[test]
#[ignore = "needs a browser: --ignored asks for it"]
fn boxes_open_and_close() {
    let browser = browser();
    let script = "
        const graph = document.getElementById('scope-graph'), boxes = () => graph.querySelectorAll('.box').length;
        const first = boxes();
        document.querySelector('button[data-levels=\"99\"]').click(); const open = boxes(), edges = graph.querySelectorAll('.edge').length;
        document.querySelector('button[data-levels=\"1\"]').click(); const closed = boxes();
        const child = graph.querySelectorAll('.box:not(.leaf)')[1];
        child.dispatchEvent(new MouseEvent('click', { bubbles: true })); const clicked = boxes();
        graph.querySelector('.box').dispatchEvent(new MouseEvent('click', { bubbles: true })); const root = boxes();
        const curve = document.getElementById('memory-curve'), place = curve.getBoundingClientRect();
        curve.dispatchEvent(new PointerEvent('pointermove', { clientX: place.left + place.width / 2, clientY: place.top + 40 }));
        const read = document.getElementById('memory-cursor').textContent;
        curve.dispatchEvent(new PointerEvent('pointerleave'));
        return { first, open, edges, closed, clicked, root, read, left: document.getElementById('memory-cursor').textContent };";
    let (document, console) = opened(&browser, &page(&["examples/configs/fsdp8.toml"]), script);
    assert_eq!(console, "");
    let found = found(&document);
    let number = |name: &str| found[name].as_u64().unwrap_or_else(|| panic!("{name}: {found}"));
    assert!(number("first") > 5 && number("open") >= number("first"), "{found}");
    assert!(number("edges") > 5, "{found}");
    assert!(number("closed") < number("open") && number("clicked") > number("closed"), "{found}");
    assert_eq!(number("root"), 1, "{found}");
    assert!(found["read"].as_str().is_some_and(|text| text.contains("MiB")), "{found}");
    assert_eq!(found["left"], "");
}

#[test]
#[ignore = "needs a browser: --ignored asks for it"]
fn light_and_dark_can_be_read() {
    let browser = browser();
    // Contrast as WCAG 2.2 defines it, of all text that is drawn on the page itself or on a card.
    let script = "
        const channel = value => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
        const luminance = color => {
            const [r, g, b] = color.match(/[\\d.]+/g).map(Number).map(channel);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        const contrast = (a, b) => (Math.max(luminance(a), luminance(b)) + 0.05) / (Math.min(luminance(a), luminance(b)) + 0.05);
        const style = (name, key) => getComputedStyle(document.querySelector(name))[key];
        const page = style('body', 'backgroundColor'), card = style('section', 'backgroundColor');
        return { dark: luminance(page) < 0.1, text: contrast(style('body', 'color'), page), lead: contrast(style('.lead', 'color'), card),
            tick: contrast(style('svg .tick', 'fill'), card), nav: contrast(style('nav a', 'color'), page),
            number: contrast(style('.pipeline .number', 'fill'), style('.pipeline rect.forward', 'fill')) };";
    let page = pipeline_page();
    for (flag, dark) in
        [("--blink-settings=preferredColorScheme=1", false), ("--blink-settings=preferredColorScheme=0", true)]
    {
        let (document, console) = opened_with(&browser, &page, script, &[flag]);
        assert_eq!(console, "");
        let found = found(&document);
        assert_eq!(found["dark"], dark, "{found}");
        let least =
            |name: &str, least: f64| assert!(found[name].as_f64().is_some_and(|it| it >= least), "{name}: {found}");
        least("text", 12.0);
        ["lead", "tick", "nav"].into_iter().for_each(|name| least(name, 4.5));
        // Large and bold.
        least("number", 3.0);
    }
}
