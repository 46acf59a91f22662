//! What do the header blocks of an HTTP/2 response say?
//!
//! A decoder (RFC 7541) for a connection whose header table has size zero, which our settings ask
//! for: nothing is remembered from one block to the next. Only what gRPC needs is reported.

/// The block is malformed, or uses a table that it must not use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed HTTP/2 header block")]
pub struct BadBlock;

/// Lengths of the Huffman codes of all bytes (RFC 7541, appendix B). The code is canonical, so the
/// lengths say everything.
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28,
    28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6,
    6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7,
    8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7,
    15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24,
    23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23,
    23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26,
    26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20,
    21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27,
    27, 27, 26,
];
/// The length of the longest codes; one of them marks the end and must not appear.
const LONGEST: usize = 30;

/// How many codes there are of each length.
const COUNTS: [u32; LONGEST + 1] = {
    let mut counts = [0; LONGEST + 1];
    let mut byte = 0;
    while byte < 256 {
        counts[LENGTHS[byte] as usize] += 1;
        byte += 1;
    }
    counts
};

/// All bytes in the order of their codes.
const ORDER: [u8; 256] = {
    let mut order = [0; 256];
    let mut filled = 0;
    let mut length = 1;
    while length <= LONGEST {
        let mut byte = 0;
        while byte < 256 {
            if LENGTHS[byte] as usize == length {
                order[filled] = byte as u8;
                filled += 1;
            }
            byte += 1;
        }
        length += 1;
    }
    order
};

/// Reports every field of `block` whose name is written out, and `:status`.
pub fn decode(block: &[u8], mut field: impl FnMut(&[u8], &[u8])) -> Result<(), BadBlock> {
    let mut rest = block;
    let (mut name, mut value) = (Vec::new(), Vec::new());
    while let Some(&first) = rest.first() {
        if first & 0x80 != 0 {
            let index = integer(&mut rest, 7)?;
            let (name, value) = fixed(index)?;
            field(name, value);
            continue;
        }
        if first & 0xe0 == 0x20 {
            integer(&mut rest, 5)?;
            continue;
        }
        let index = integer(&mut rest, if first & 0x40 != 0 { 6 } else { 4 })?;
        if index == 0 {
            string(&mut rest, &mut name)?;
        } else {
            name.clear();
            name.extend_from_slice(fixed(index)?.0);
        }
        string(&mut rest, &mut value)?;
        field(&name, &value);
    }
    Ok(())
}

/// Writes a field without touching any table; `index` names a field of the fixed table.
pub fn literal(index: Option<u8>, name: &str, value: &str, out: &mut Vec<u8>) {
    match index {
        Some(index) => put_integer(0x00, 4, usize::from(index), out),
        None => {
            out.push(0x00);
            put_integer(0x00, 7, name.len(), out);
            out.extend_from_slice(name.as_bytes());
        }
    }
    put_integer(0x00, 7, value.len(), out);
    out.extend_from_slice(value.as_bytes());
}

/// An entry of the fixed table; names that we do not ask for are left empty.
fn fixed(index: usize) -> Result<(&'static [u8], &'static [u8]), BadBlock> {
    const STATUS: [&[u8]; 7] = [b"200", b"204", b"206", b"304", b"400", b"404", b"500"];
    match index {
        8..=14 => Ok((b":status", STATUS[index - 8])),
        1..=61 => Ok((b"", b"")),
        _ => Err(BadBlock),
    }
}

fn integer(rest: &mut &[u8], bits: u32) -> Result<usize, BadBlock> {
    let (&first, mut tail) = rest.split_first().ok_or(BadBlock)?;
    let mask = (1usize << bits) - 1;
    let mut value = usize::from(first) & mask;
    if value == mask {
        let mut shift = 0;
        loop {
            let (&byte, more) = tail.split_first().ok_or(BadBlock)?;
            tail = more;
            // Nothing that we accept is longer than a frame.
            if shift > 14 {
                return Err(BadBlock);
            }
            value += usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
    }
    *rest = tail;
    Ok(value)
}

fn put_integer(flags: u8, bits: u32, value: usize, out: &mut Vec<u8>) {
    let mask = (1usize << bits) - 1;
    if value < mask {
        out.push(flags | value as u8);
        return;
    }
    out.push(flags | mask as u8);
    let mut left = value - mask;
    while left >= 0x80 {
        out.push((left & 0x7f) as u8 | 0x80);
        left >>= 7;
    }
    out.push(left as u8);
}

fn string(rest: &mut &[u8], out: &mut Vec<u8>) -> Result<(), BadBlock> {
    out.clear();
    let coded = rest.first().ok_or(BadBlock)? & 0x80 != 0;
    let length = integer(rest, 7)?;
    let (text, tail) = rest.split_at_checked(length).ok_or(BadBlock)?;
    *rest = tail;
    if coded {
        unpack(text, out)
    } else {
        out.extend_from_slice(text);
        Ok(())
    }
}

fn unpack(packed: &[u8], out: &mut Vec<u8>) -> Result<(), BadBlock> {
    // The codes of one length are consecutive numbers, and `first` is the least of them; `before`
    // counts the codes that are shorter.
    let (mut code, mut length, mut first, mut before) = (0u32, 0usize, 0u32, 0u32);
    let mut ones = true;
    for at in 0..packed.len() * 8 {
        let bit = u32::from(packed[at / 8] >> (7 - at % 8) & 1);
        code = code << 1 | bit;
        length += 1;
        ones &= bit == 1;
        first <<= 1;
        if length > LONGEST {
            return Err(BadBlock);
        }
        if code < first + COUNTS[length] {
            out.push(ORDER[(before + code - first) as usize]);
            (code, length, first, before, ones) = (0, 0, 0, 0, true);
        } else {
            before += COUNTS[length];
            first += COUNTS[length];
        }
    }
    // What is left over is padding: fewer than eight bits, all ones.
    if length > 7 || !ones {
        Err(BadBlock)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The canonical code of a byte, from the lengths alone.
    fn code(byte: u8) -> (u32, u8) {
        let mut next = 0u32;
        for length in 1..=LONGEST as u8 {
            next <<= 1;
            for candidate in 0..=255u8 {
                if LENGTHS[usize::from(candidate)] == length {
                    if candidate == byte {
                        return (next, length);
                    }
                    next += 1;
                }
            }
        }
        unreachable!("every byte has a code")
    }

    fn pack(text: &[u8]) -> Vec<u8> {
        let mut bits: Vec<bool> = Vec::new();
        for byte in text {
            let (code, length) = code(*byte);
            bits.extend((0..length).rev().map(|bit| code >> bit & 1 == 1));
        }
        while !bits.len().is_multiple_of(8) {
            bits.push(true);
        }
        bits.chunks(8)
            .map(|byte| byte.iter().fold(0, |sum, bit| sum << 1 | u8::from(*bit)))
            .collect()
    }

    fn fields(block: &[u8]) -> Result<Vec<(String, String)>, BadBlock> {
        let mut found = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        decode(block, |name, value| found.push((text(name), text(value))))?;
        Ok(found)
    }

    #[test]
    fn the_example_of_the_specification_unpacks() {
        let packed = [
            0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff,
        ];
        let mut text = Vec::new();
        assert_eq!(unpack(&packed, &mut text), Ok(()));
        assert_eq!(text, b"www.example.com");
        assert_eq!(pack(b"www.example.com"), packed);
    }

    #[test]
    fn statuses_and_literals_are_reported() {
        let mut block = vec![0x88];
        literal(None, "grpc-status", "12", &mut block);
        literal(Some(8), "", "503", &mut block);
        let found = fields(&block).unwrap_or_default();
        let expected = [(":status", "200"), ("grpc-status", "12"), (":status", "503")];
        assert_eq!(
            found,
            expected.map(|(name, value)| (name.to_owned(), value.to_owned()))
        );
    }

    #[test]
    fn a_table_that_does_not_exist_is_refused() {
        assert_eq!(fields(&[0xbe]), Err(BadBlock));
        assert_eq!(fields(&[0x80]), Err(BadBlock));
        assert_eq!(fields(&[0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]), Err(BadBlock));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        #[test]
        fn any_text_survives_packing(text in prop::collection::vec(any::<u8>(), 0..100)) {
            let mut unpacked = Vec::new();
            prop_assert_eq!(unpack(&pack(&text), &mut unpacked), Ok(()));
            prop_assert_eq!(unpacked, text);
        }

        #[test]
        fn any_field_survives(name in "[a-z-]{1,200}", value in "[ -~]{0,300}") {
            let mut block = Vec::new();
            literal(None, &name, &value, &mut block);
            prop_assert_eq!(fields(&block), Ok(vec![(name, value)]));
        }

        #[test]
        fn any_bytes_are_read_without_panic(block in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = fields(&block);
        }
    }
}
