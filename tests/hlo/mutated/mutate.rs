//! Mistakes, made at random.

/// Pseudo-random numbers (xorshift64), the same for the same seed.
pub struct Random(u64);

impl Random {
    /// The numbers of the `number`th input.
    pub fn new(seed: usize, number: usize) -> Self {
        let mut random =
            Random(0x9e37_79b9_7f4a_7c15 ^ (seed as u64).wrapping_mul(0x2545_f491_4f6c_dd1d) ^ number as u64);
        // Neighbouring states give alike numbers at first.
        (0..8).for_each(|_| {
            random.below(1);
        });
        random
    }

    /// A number below `bound`, 0 if that is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = (self.0 ^ (self.0 << 13)).max(1);
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound.max(1) as u64) as usize
    }

    /// Mostly one: with more, hardly anything is still a module.
    fn mistakes(&mut self) -> usize {
        if self.below(3) > 0 { 1 } else { 2 + self.below(3) }
    }

    fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}

/// Pieces of text that make a difference.
const PIECES: &[&[u8]] = &[
    b"{",
    b"}",
    b"(",
    b")",
    b"[",
    b"]",
    b",",
    b"=",
    b"%",
    b"\"",
    b"'",
    b"\\",
    b"/*",
    b"*/",
    b"//",
    b"->",
    b"<=",
    b":",
    b"?",
    b"...",
    b"{...}",
    b"-1",
    b"0",
    b"1",
    b"1000000000",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"99999999999999999999",
    b"nan",
    b"-nan(0x1)",
    b"inf",
    b"1e400",
    b"0.5",
    b"true",
    b"f32[]",
    b"f32[2]{0}",
    b"s4[1000000000]",
    b"(f32[], (s32[2]))",
    b"token[]",
    b"b(f32[2])",
    b"f32[<=8,?]",
    b"{1,0:T(8,128)S(1)}",
    b"{0,0,0,0}",
    b"ROOT ",
    b"ENTRY ",
    b"HloModule m",
    b"parameter(0)",
    b"constant({...})",
    b"tuple(%x, %x)",
    b"add(%x, %x)",
    b", sharding={devices=[2,4]<=[8]}",
    b", sharding={mesh['a'=2], [{'a'}]}",
    b", metadata={op_name=\"a\" stack_frame_id=7}",
    b", dimensions={0}",
    b", calls=%x",
    b", to_apply={ a = f32[] parameter(0) }",
    b", backend_config={\"known_trip_count\":{\"n\":\"18446744073709551615\"}}",
    b", replica_groups=[1000000,1000000]<=[1000000000000]",
    b", replica_groups={{0,1},{2}}",
    b", channel_id=1",
    b"-start",
    b"-done",
    b"-update",
    b"\xff",
    b"\0",
    b"\n",
    b"\n}\n",
    b"\xc3\xa9",
];

/// A text with up to four mistakes: pieces of itself or of other texts cut, doubled, moved, and pieces put in.
pub fn text(random: &mut Random, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut text = random.pick(seeds).clone();
    for _ in 0..random.mistakes() {
        let at = random.below(text.len() + 1);
        let end = (at + 1 + random.below(24)).min(text.len());
        match random.below(14) {
            0 => drop(text.drain(at..end)),
            1 => {
                let piece = text[at..end].to_vec();
                let place = random.below(text.len() + 1);
                text.splice(place..place, piece);
            }
            2 => {
                let lines = lines(&text);
                if let (Some(from), Some(to)) =
                    (lines.get(random.below(lines.len())), lines.get(random.below(lines.len())))
                {
                    let line = text[from.clone()].to_vec();
                    text.splice(to.start..to.start, line);
                }
            }
            3 => {
                let other = random.pick(seeds);
                let from = random.below(other.len());
                let piece = other[from..(from + random.below(80)).min(other.len())].to_vec();
                text.splice(at..end, piece);
            }
            4 => {
                if let Some(byte) = text.get_mut(at) {
                    *byte ^= 1 << random.below(8);
                }
            }
            5..9 => {
                // A number where there was one.
                let digit = text[at..].iter().position(u8::is_ascii_digit).map(|offset| at + offset);
                if let Some(digit) = digit {
                    let number =
                        *random.pick(&[&b"0"[..], b"1", b"2", b"3", b"17", b"-1", b"65536", b"9223372036854775807"]);
                    text.splice(digit..digit + 1, number.iter().copied());
                }
            }
            _ => {
                let piece = random.pick(PIECES).to_vec();
                let end = if random.below(2) == 0 { at } else { end };
                text.splice(at..end, piece);
            }
        }
    }
    text
}

fn lines(text: &[u8]) -> Vec<std::ops::Range<usize>> {
    let mut start = 0;
    let mut lines = Vec::new();
    for (position, _) in text.iter().enumerate().filter(|(_, byte)| **byte == b'\n') {
        lines.push(start..position + 1);
        start = position + 1;
    }
    lines
}

/// An encoded message with up to four mistakes, mostly in place: so the lengths around stay right and it decodes.
pub fn bytes(random: &mut Random, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = random.pick(seeds).clone();
    for _ in 0..random.mistakes() {
        let at = random.below(bytes.len());
        match random.below(16) {
            0 => drop(bytes.remove(at)),
            1 => bytes.insert(at, random.below(256) as u8),
            2..8 => bytes[at] = random.below(128) as u8,
            8 => bytes[at] = 0x7f,
            9 => {
                // The same field again, for bytes that look like the start of a small one.
                let end = (at + 2 + usize::from(bytes.get(at + 1).copied().unwrap_or(0) & 0x1f)).min(bytes.len());
                let field = bytes[at..end].to_vec();
                bytes.splice(end..end, field);
            }
            _ => bytes[at] ^= 1 << random.below(7),
        }
    }
    bytes
}
