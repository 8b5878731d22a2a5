//! Base64, in which the test control has the data of znodes.

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub(crate) fn encode(data: &[u8]) -> String {
    let mut text = String::new();
    for three in data.chunks(3) {
        let bits = three.iter().enumerate().fold(0u32, |bits, (i, byte)| bits | u32::from(*byte) << (16 - 8 * i));
        for i in 0..4 {
            text.push(if i <= three.len() { DIGITS[(bits >> (18 - 6 * i) & 63) as usize] as char } else { '=' });
        }
    }
    text
}

/// Decodes what the server has encoded.
pub(crate) fn decode(text: &str) -> Vec<u8> {
    let mut data = Vec::new();
    let (mut bits, mut have) = (0u32, 0);
    for digit in text.bytes().filter_map(|c| DIGITS.iter().position(|digit| *digit == c)) {
        bits = bits << 6 | digit as u32;
        have += 6;
        if have >= 8 {
            have -= 8;
            data.push((bits >> have) as u8);
        }
    }
    data
}

#[cfg(test)]
mod tests {
    #[test]
    fn both_ways() {
        for (data, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")] {
            assert_eq!(super::encode(data.as_bytes()), text);
            assert_eq!(super::decode(text), data.as_bytes());
        }
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(super::decode(&super::encode(&all)), all);
    }
}
