//! This program made `examples/data/austen.tokenizer.json`: byte-level BPE with 1024 tokens, trained on the text beside
//! it.
//!
//! ```text
//! cargo run --release -p meshloom-examples --features tokenizers --example train_tokenizer
//! ```
//!
//! Use it with `--set data.tokenizer=examples/data/austen.tokenizer.json --set model.vocab=1024`.

use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{Result, TokenizerBuilder};

const TEXT: &str = "examples/data/austen.txt";
const TOKENIZER: &str = "examples/data/austen.tokenizer.json";
const VOCABULARY_SIZE: usize = 1024;

fn main() -> Result<()> {
    let mut trainer = BpeTrainer::builder()
        .show_progress(false)
        .vocab_size(VOCABULARY_SIZE)
        // Every byte is a token, so that any text can be taken apart.
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build();
    let mut tokenizer = TokenizerBuilder::new()
        .with_model(BPE::default())
        .with_normalizer(None::<NormalizerWrapper>)
        // No space in front of a text: documents follow one another.
        .with_pre_tokenizer(Some(ByteLevel::default().add_prefix_space(false)))
        .with_post_processor(Some(ByteLevel::default()))
        .with_decoder(Some(ByteLevel::default()))
        .build()?;
    tokenizer.train_from_files(&mut trainer, vec![TEXT.to_owned()])?.save(TOKENIZER, false)?;
    println!("{TOKENIZER}: {} tokens", tokenizer.get_vocab_size(true));
    Ok(())
}
