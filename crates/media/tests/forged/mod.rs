//! Files that no honest program writes.

/// Zeros, packed by hand: one zero, then copies of 258 of the byte before.
pub fn zeros(n: usize) -> Vec<u8> {
    let mut bits = Bits::default();
    // The last block, of fixed codes.
    bits.push(0b1, 1);
    bits.push(0b01, 2);
    bits.push_code(0x30, 8);
    for _ in 0..n.saturating_sub(1) / 258 {
        // Length 258, distance 1.
        bits.push_code(0b1100_0101, 8);
        bits.push_code(0, 5);
    }
    (0..n.saturating_sub(1) % 258).for_each(|_| bits.push_code(0x30, 8));
    bits.push_code(0, 7);
    let mut packed = vec![0x78, 0x01];
    packed.extend(bits.done());
    // The sum of zeros modulo 65521 is that of their number.
    let adler = (n as u64 % 65_521) << 16 | 1;
    packed.extend((adler as u32).to_be_bytes());
    packed
}

#[derive(Default)]
struct Bits {
    bytes: Vec<u8>,
    held: u32,
    n: u32,
}

impl Bits {
    /// Lowest bit first.
    fn push(&mut self, value: u32, n: u32) {
        self.held |= value << self.n;
        self.n += n;
        while self.n >= 8 {
            self.bytes.push(self.held as u8);
            self.held >>= 8;
            self.n -= 8;
        }
    }

    /// Highest bit first.
    fn push_code(&mut self, code: u32, n: u32) {
        (0..n).rev().for_each(|i| self.push(code >> i & 1, 1));
    }

    fn done(mut self) -> Vec<u8> {
        if self.n > 0 {
            self.bytes.push(self.held as u8);
        }
        self.bytes
    }
}

/// A grey PNG file of packed rows, with a packed colour profile.
pub fn png(width: u32, height: u32, rows: &[u8], profile: Option<&[u8]>) -> Vec<u8> {
    let mut file = png_header(width, height);
    if let Some(profile) = profile {
        chunk(&mut file, b"iCCP", &[b"x\0\0".as_slice(), profile].concat());
    }
    chunk(&mut file, b"IDAT", rows);
    chunk(&mut file, b"IEND", &[]);
    file
}

/// The beginning of a grey PNG file.
pub fn png_header(width: u32, height: u32) -> Vec<u8> {
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    let mut header = [width.to_be_bytes(), height.to_be_bytes()].concat();
    header.extend([8, 0, 0, 0, 0]);
    chunk(&mut file, b"IHDR", &header);
    file
}

fn chunk(file: &mut Vec<u8>, name: &[u8], body: &[u8]) {
    file.extend((body.len() as u32).to_be_bytes());
    let from = file.len();
    file.extend(name);
    file.extend(body);
    let sum = crc32(&file[from..]);
    file.extend(sum.to_be_bytes());
}

fn crc32(bytes: &[u8]) -> u32 {
    let table: [u32; 256] = std::array::from_fn(|i| {
        (0..8).fold(i as u32, |c, _| if c & 1 == 1 { c >> 1 ^ 0xedb8_8320 } else { c >> 1 })
    });
    let step = |c: u32, b: &u8| table[usize::from(c as u8 ^ b)] ^ c >> 8;
    !bytes.iter().fold(!0, step)
}

/// A JPEG file without coded data: `kind` 0xc0 is sequential, 0xc2 progressive.
pub fn jpeg_header(kind: u8, width: u16, height: u16) -> Vec<u8> {
    let mut file = b"\xff\xd8".to_vec();
    // A table of ones, and one that codes nothing but zero.
    file.extend(b"\xff\xdb\0\x43\0");
    file.extend([1; 64]);
    for class in [0x00, 0x10] {
        file.extend([0xff, 0xc4, 0, 20, class, 1]);
        file.extend([0; 15]);
        file.push(0);
    }
    file.extend([0xff, kind, 0, 17, 8]);
    file.extend(height.to_be_bytes());
    file.extend(width.to_be_bytes());
    file.extend([3, 1, 0x11, 0, 2, 0x11, 0, 3, 0x11, 0]);
    let last = if kind == 0xc2 { 0 } else { 63 };
    file.extend([0xff, 0xda, 0, 12, 3, 1, 0, 2, 0, 3, 0, 0, last, 0]);
    file
}

/// A GIF file's screen, without colours.
pub fn gif_header(width: u16, height: u16) -> Vec<u8> {
    let mut file = b"GIF89a".to_vec();
    file.extend(width.to_le_bytes());
    file.extend(height.to_le_bytes());
    file.extend([0, 0, 0]);
    file
}

/// A BMP file's header, of 24 bits.
pub fn bmp_header(width: i32, height: i32) -> Vec<u8> {
    let mut file = b"BM\0\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0".to_vec();
    file.extend(width.to_le_bytes());
    file.extend(height.to_le_bytes());
    file.extend([1, 0, 24, 0]);
    file.extend([0; 24]);
    file
}

/// A WebP file with a canvas of its own.
pub fn webp_canvas(width: u32, height: u32, chunks: &[u8]) -> Vec<u8> {
    let mut body = vec![0; 4];
    body.extend(&(width - 1).to_le_bytes()[..3]);
    body.extend(&(height - 1).to_le_bytes()[..3]);
    webp(&[riff(b"VP8X", &body), chunks.to_vec()].concat())
}

/// A lossless WebP file without data.
pub fn webp_lossless(width: u32, height: u32) -> Vec<u8> {
    let bits = (width - 1) | (height - 1) << 14;
    webp(&riff(b"VP8L", &[&[0x2f], bits.to_le_bytes().as_slice(), &[0; 9]].concat()))
}

/// A lossy image without data.
pub fn vp8_chunk(width: u16, height: u16) -> Vec<u8> {
    let sides = [width.to_le_bytes(), height.to_le_bytes()].concat();
    riff(b"VP8 ", &[b"\x10\x02\0\x9d\x01\x2a".as_slice(), &sides, &[0; 16]].concat())
}

fn webp(chunks: &[u8]) -> Vec<u8> {
    riff(b"RIFF", &[b"WEBP".as_slice(), chunks].concat())
}

fn riff(name: &[u8], body: &[u8]) -> Vec<u8> {
    [name, &(body.len() as u32).to_le_bytes(), body].concat()
}

/// A WAV file. Coding 1 is of integers, 3 of floats.
pub fn wav(coding: u16, channels: u16, rate: u32, bits: u16, data: &[u8]) -> Vec<u8> {
    let align = channels.wrapping_mul(bits / 8);
    let mut format = [coding.to_le_bytes(), channels.to_le_bytes()].concat();
    format.extend(rate.to_le_bytes());
    format.extend(rate.wrapping_mul(align.into()).to_le_bytes());
    format.extend([align.to_le_bytes(), bits.to_le_bytes()].concat());
    let chunks = [riff(b"fmt ", &format), riff(b"data", data)].concat();
    riff(b"RIFF", &[b"WAVE".as_slice(), &chunks].concat())
}

/// The header of a FLAC file of one channel of 16 bits; 0 samples are an unknown number.
pub fn flac_header(rate: u32, samples: u64) -> Vec<u8> {
    let mut file = b"fLaC\x80\0\0\x22\xff\xff\xff\xff\0\0\0\0\0\0".to_vec();
    let packed = u64::from(rate) << 44 | 15 << 36 | samples;
    file.extend(packed.to_be_bytes());
    file.extend([0; 16]);
    file
}

/// A FLAC frame of 65,535 samples of a quarter.
pub fn flac_frame(number: u32) -> Vec<u8> {
    // Fixed blocks; their length follows; 48 kHz; one channel of 16 bits.
    let mut frame = vec![0xff, 0xf8, 0x7a, 0x08];
    frame.extend(char::from_u32(number).unwrap().to_string().bytes());
    frame.extend(65_534u16.to_be_bytes());
    frame.push(crc(&frame, 8, 0x07) as u8);
    // One constant.
    frame.push(0);
    frame.extend(8192i16.to_be_bytes());
    frame.extend((crc(&frame, 16, 0x8005) as u16).to_be_bytes());
    frame
}

/// Of a width, highest bit first.
fn crc(bytes: &[u8], width: u32, polynomial: u32) -> u32 {
    let top = 1 << (width - 1);
    let mut sum = 0u32;
    for byte in bytes {
        sum ^= u32::from(*byte) << (width - 8);
        for _ in 0..8 {
            sum = if sum & top != 0 { sum << 1 ^ polynomial } else { sum << 1 };
        }
    }
    sum & ((1 << width) - 1)
}
