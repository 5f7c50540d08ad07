use lapidary_program::{DType, Encoding, QuantLayout, ScaleFormat};

/// How a GGUF tensor's numbers are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, non_camel_case_types, clippy::upper_case_acronyms)]
pub enum GgmlType {
    F32,
    F16,
    BF16,
    F64,
    I8,
    I16,
    I32,
    I64,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    /// A format that is known, so that its size is, but not read.
    Unread(&'static str, u32, u32),
}

/// Every format by its number in the file. The numbers that are missing were never published or
/// have been withdrawn.
const BY_ID: [(u32, GgmlType); 34] = [
    (0, GgmlType::F32),
    (1, GgmlType::F16),
    (2, GgmlType::Q4_0),
    (3, GgmlType::Q4_1),
    (6, GgmlType::Q5_0),
    (7, GgmlType::Q5_1),
    (8, GgmlType::Q8_0),
    (9, GgmlType::Unread("Q8_1", 32, 40)),
    (10, GgmlType::Q2_K),
    (11, GgmlType::Q3_K),
    (12, GgmlType::Q4_K),
    (13, GgmlType::Q5_K),
    (14, GgmlType::Q6_K),
    (15, GgmlType::Unread("Q8_K", 256, 292)),
    (16, GgmlType::Unread("IQ2_XXS", 256, 66)),
    (17, GgmlType::Unread("IQ2_XS", 256, 74)),
    (18, GgmlType::Unread("IQ3_XXS", 256, 98)),
    (19, GgmlType::Unread("IQ1_S", 256, 50)),
    (20, GgmlType::Unread("IQ4_NL", 32, 18)),
    (21, GgmlType::Unread("IQ3_S", 256, 110)),
    (22, GgmlType::Unread("IQ2_S", 256, 82)),
    (23, GgmlType::Unread("IQ4_XS", 256, 136)),
    (24, GgmlType::I8),
    (25, GgmlType::I16),
    (26, GgmlType::I32),
    (27, GgmlType::I64),
    (28, GgmlType::F64),
    (29, GgmlType::Unread("IQ1_M", 256, 56)),
    (30, GgmlType::BF16),
    (34, GgmlType::Unread("TQ1_0", 256, 54)),
    (35, GgmlType::Unread("TQ2_0", 256, 66)),
    (39, GgmlType::Unread("MXFP4", 32, 17)),
    (40, GgmlType::Unread("NVFP4", 64, 36)),
    (41, GgmlType::Unread("Q1_0", 128, 18)),
];

/// Codes of a super-block of the K family.
const K: u32 = 256;

impl GgmlType {
    /// The format with a number, if there is one.
    pub fn from_id(id: u32) -> Option<Self> {
        BY_ID.iter().find(|(i, _)| *i == id).map(|(_, t)| *t)
    }

    /// The name that llama.cpp uses.
    pub const fn name(self) -> &'static str {
        match self {
            GgmlType::F32 => "F32",
            GgmlType::F16 => "F16",
            GgmlType::BF16 => "BF16",
            GgmlType::F64 => "F64",
            GgmlType::I8 => "I8",
            GgmlType::I16 => "I16",
            GgmlType::I32 => "I32",
            GgmlType::I64 => "I64",
            GgmlType::Q4_0 => "Q4_0",
            GgmlType::Q4_1 => "Q4_1",
            GgmlType::Q5_0 => "Q5_0",
            GgmlType::Q5_1 => "Q5_1",
            GgmlType::Q8_0 => "Q8_0",
            GgmlType::Q2_K => "Q2_K",
            GgmlType::Q3_K => "Q3_K",
            GgmlType::Q4_K => "Q4_K",
            GgmlType::Q5_K => "Q5_K",
            GgmlType::Q6_K => "Q6_K",
            GgmlType::Unread(name, ..) => name,
        }
    }

    /// Elements and bytes of one block; a row is a whole number of blocks.
    pub const fn block(self) -> (u32, u32) {
        match self {
            GgmlType::I8 => (1, 1),
            GgmlType::F16 | GgmlType::BF16 | GgmlType::I16 => (1, 2),
            GgmlType::F32 | GgmlType::I32 => (1, 4),
            GgmlType::F64 | GgmlType::I64 => (1, 8),
            GgmlType::Q4_0 => (32, 18),
            GgmlType::Q4_1 => (32, 20),
            GgmlType::Q5_0 => (32, 22),
            GgmlType::Q5_1 => (32, 24),
            GgmlType::Q8_0 => (32, 34),
            GgmlType::Q2_K => (K, 84),
            GgmlType::Q3_K => (K, 110),
            GgmlType::Q4_K => (K, 144),
            GgmlType::Q5_K => (K, 176),
            GgmlType::Q6_K => (K, 210),
            GgmlType::Unread(_, elements, bytes) => (elements, bytes),
        }
    }

    /// What a tensor of this format becomes, number for number; `None` if it is not read.
    pub const fn encoding(self) -> Option<Encoding> {
        let quant = match self {
            GgmlType::F32 => return Some(Encoding::Dense(DType::F32)),
            GgmlType::F16 => return Some(Encoding::Dense(DType::F16)),
            GgmlType::BF16 => return Some(Encoding::Dense(DType::Bf16)),
            GgmlType::I64 => return Some(Encoding::Dense(DType::I64)),
            GgmlType::Q4_0 => QuantLayout::symmetric(4, 32, DType::F16),
            GgmlType::Q5_0 => QuantLayout::symmetric(5, 32, DType::F16),
            GgmlType::Q8_0 => QuantLayout::symmetric(8, 32, DType::F16),
            GgmlType::Q4_1 => QuantLayout::affine(4, 32, DType::F16),
            GgmlType::Q5_1 => QuantLayout::affine(5, 32, DType::F16),
            GgmlType::Q2_K => nested(2, 16, 0, DType::U8, true),
            GgmlType::Q3_K => nested(3, 16, 4, DType::I8, false),
            GgmlType::Q4_K => nested(4, 32, 0, DType::U8, true),
            GgmlType::Q5_K => nested(5, 32, 0, DType::U8, true),
            GgmlType::Q6_K => nested(6, 16, 32, DType::I8, false),
            GgmlType::F64 | GgmlType::I8 | GgmlType::I16 | GgmlType::I32 | GgmlType::Unread(..) => {
                return None;
            }
        };
        Some(Encoding::Quant(quant))
    }
}

/// A super-block of the K family: a byte per group under one half-precision float.
const fn nested(bits: u8, group: u32, offset: u8, sub: DType, affine: bool) -> QuantLayout {
    let scale = ScaleFormat::Nested { per: K.div_euclid(group), sub, dtype: DType::F16 };
    QuantLayout { bits, group, offset, scale, affine }
}
