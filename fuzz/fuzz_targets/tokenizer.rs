//! Any bytes as a `tokenizer.json`: an error, or a tokenizer that takes a text apart and puts it together.
//!
//! The crate tokenizers panics on some files, which is caught where the file is read. libFuzzer would end at the panic,
//! so its hook is replaced.

#![no_main]

use libfuzzer_sys::fuzz_target;
use meshloom_train::tokenizer::Tokenizer;

fuzz_target!(
    init: std::panic::set_hook(Box::new(|_| ())),
    |json: &[u8]| {
        let Ok(tokenizer) = Tokenizer::from_json(json, "tokenizer.json") else { return };
        let Ok(tokens) = tokenizer.encode_with_special("It was the best of times, a aa aaa") else { return };
        tokenizer.decode(&tokens);
    }
);
