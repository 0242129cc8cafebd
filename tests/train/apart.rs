//! Messages of replicas that live apart, judged by a run before it takes them.

use std::path::Path;
use std::sync::{Arc, Mutex};

use meshloom_train::peers::{Beginning, Judge, ReplicaLink, ReplicaLinkError, Round};
use meshloom_train::{Text, Trainer};
use support::cases::cases;
use support::configs::{ONE_DEVICE, TINY, UNOPTIMIZED, config};
use support::eight_devices::client;

/// A replica whose only partner sends what it sends, with another number in one place.
#[derive(Debug, Default)]
struct Mirror {
    /// The number, and how many messages went before.
    sent: Mutex<(f32, usize)>,
    /// The reason why the message was not taken, if it was not.
    refused: Mutex<Option<String>>,
    round: Mutex<Vec<Vec<u8>>>,
}

impl ReplicaLink for Mirror {
    fn number(&self) -> usize {
        0
    }

    fn begin(&self, _: &str, step: u64) -> Result<Beginning, ReplicaLinkError> {
        Ok(Beginning { step, gives: false, taken: None })
    }

    fn send(&self, _: u64, _: u64, message: Vec<u8>, judge: Judge) -> Result<(), ReplicaLinkError> {
        assert_eq!(judge(&message), Ok(()), "its own message");
        let mut partners = message.clone();
        let (number, count) = &mut *self.sent.lock().expect("no panic");
        let place = *count * 977 % (message.len() / 4) * 4;
        *count += 1;
        partners[place..place + 4].copy_from_slice(&number.to_le_bytes());
        let judged = judge(&partners);
        let taken = if judged.is_ok() { vec![message, partners] } else { Vec::new() };
        *self.round.lock().expect("no panic") = taken;
        *self.refused.lock().expect("no panic") = judged.err();
        assert!(judge(&[0; 3]).is_err_and(|error| error.contains("3 bytes")));
        Ok(())
    }

    fn receive(&self, _: u64) -> Result<Round, ReplicaLinkError> {
        Ok(Round { messages: std::mem::take(&mut self.round.lock().expect("no panic")), gives: false })
    }

    fn give(&self, _: u64, _: &Path) -> Result<(), ReplicaLinkError> {
        Ok(())
    }

    fn leave(&self) -> Result<(), ReplicaLinkError> {
        Ok(())
    }
}

/// Twenty places: a number in a message that is not finite, or beyond `diloco.apart.max_norm`, is refused with the
/// reason, and the run goes on with its own finite state. The same messages without it are taken.
#[test]
fn a_bad_number_in_a_message_is_refused() {
    let cases: Vec<usize> = cases("train places of bad numbers in messages", 0, 0..20);
    if cases.is_empty() {
        return;
    }
    let settings = ["model.layers=1", "train.batch=4", "train.warmup=0", UNOPTIMIZED, "diloco.apart=true"];
    let periods = ["diloco.sync_period=1", "diloco.replicas=2", "diloco.apart.max_norm=100"];
    let config = config(&[TINY, ONE_DEVICE, &settings, &periods]);
    let mirror = Arc::new(Mirror::default());
    let run = config.resolve().unwrap_or_else(|error| panic!("{error}")).with_replica_link(mirror.clone());
    let data = Text::load(&config).unwrap_or_else(|error| panic!("{error}"));
    let mut trainer = Trainer::of(run, data, &client()).unwrap_or_else(|error| panic!("{error}"));
    for case in cases {
        let (number, reason) = [
            (f32::NAN, Some("it has numbers that are not finite")),
            (f32::INFINITY, Some("it has numbers that are not finite")),
            (f32::NEG_INFINITY, Some("it has numbers that are not finite")),
            (1e3, Some("diloco.apart.max_norm is 100")),
            (1e-3, None),
        ][case % 5];
        mirror.sent.lock().expect("no panic").0 = number;
        let metrics = trainer.step().unwrap_or_else(|error| panic!("{error}"));
        trainer.complete().unwrap_or_else(|error| panic!("{error}"));
        assert!(metrics.loss.is_finite() && metrics.grad_norm.is_finite(), "case {case}: {metrics:?}");
        let refused = mirror.refused.lock().expect("no panic").clone();
        match reason {
            None => assert_eq!(refused, None, "case {case}"),
            Some(reason) => assert!(refused.as_ref().is_some_and(|it| it.contains(reason)), "case {case}: {refused:?}"),
        }
    }
    assert_eq!(mirror.sent.lock().expect("no panic").1, trainer.steps_done() as usize);
}
