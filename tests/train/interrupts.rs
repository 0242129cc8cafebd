//! Tests of the interrupts that end a run before its last step, without a run: when the run is asked, and Google's
//! notices.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use meshloom_cli::{Interrupt, Interrupts};

fn interrupt(code: u8) -> Interrupt {
    Interrupt { code, reason: format!("signal {code}") }
}

/// Before and after training, and after a second interrupt, the caller need not wait for the run.
#[test]
fn a_run_is_asked_once_and_while_it_trains() {
    let interrupts = Interrupts::default();
    assert!(!interrupts.ask(interrupt(143)));
    let mut training = interrupts.training(None);
    assert_eq!(training.ends_after(3, None).expect("no peers"), None);
    assert!(interrupts.ask(interrupt(130)));
    assert!(!interrupts.ask(interrupt(143)));
    assert_eq!(training.ends_after(4, None).expect("no peers"), Some(interrupt(130)));
    drop(training);
    assert!(!interrupts.ask(interrupt(143)));
}

/// The metadata server gives notice from its third answer on: machines that only migrate go on.
#[test]
fn a_notice_of_google_ends_a_run() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let host = listener.local_addr().expect("an address").to_string();
    let (said, asked) = (Arc::new(AtomicUsize::new(0)), mpsc::channel());
    let (count, to) = (said.clone(), asked.0);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.expect("a connection"));
            let lines: Vec<String> =
                stream.by_ref().lines().map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
            let header = lines.iter().any(|line| line.eq_ignore_ascii_case("metadata-flavor: google"));
            let path = lines[0].split(' ').nth(1).unwrap_or_default().to_owned();
            let body = match (path.rsplit('/').next(), count.fetch_add(1, Ordering::SeqCst)) {
                (Some("preempted"), _) => "FALSE",
                (_, before) if before < 4 => "MIGRATE_ON_HOST_MAINTENANCE",
                _ => "TERMINATE_ON_HOST_MAINTENANCE",
            };
            let answer =
                format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
            stream.get_mut().write_all(answer.as_bytes()).expect("answered");
            let _ = to.send((header, path));
        }
    });
    let interrupts = Interrupts::default();
    interrupts.heed_google(&host, Duration::from_millis(5)).expect("it answers");
    let (header, path) = asked.1.recv().expect("a question");
    assert!(header && path == "/computeMetadata/v1/instance/maintenance-event", "{path}");
    // The notice is given, but no run trains yet.
    while said.load(Ordering::SeqCst) < 8 {
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(interrupts.asked(), None);
    let _training = interrupts.training(None);
    while interrupts.asked().is_none() {
        thread::sleep(Duration::from_millis(5));
    }
    let Interrupt { code, reason } = interrupts.asked().expect("asked");
    assert_eq!((code, &*reason), (143, "Google's notice TERMINATE_ON_HOST_MAINTENANCE"));
    // A server that is not there is an error at once.
    let error = Interrupts::default().heed_google("127.0.0.1:1", Duration::from_secs(1)).expect_err("nobody listens");
    assert!(error.to_string().contains("GCE_METADATA_HOST"), "{error}");
}
