use serde::{Deserialize, Serialize};

/// How one stored number is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an `f32`.
    Bf16,
    /// Signed byte.
    I8,
    /// Unsigned byte.
    U8,
    /// Signed 64-bit integer (index tables).
    I64,
}

impl DType {
    /// Bytes of one element.
    pub const fn size_bytes(self) -> usize {
        match self {
            DType::F32 => 4,
            DType::F16 | DType::Bf16 => 2,
            DType::I8 | DType::U8 => 1,
            DType::I64 => 8,
        }
    }

    /// True for the types that a matrix or a scale may be stored in.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16 | DType::Bf16)
    }

    /// Lower-case name, as in `program.json`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
            DType::I8 => "i8",
            DType::U8 => "u8",
            DType::I64 => "i64",
        }
    }

    /// Decodes little-endian elements to `f32`; `bytes` must hold `out.len()` of them.
    pub fn decode_f32(self, bytes: &[u8], out: &mut [f32]) {
        assert_eq!(bytes.len(), out.len() * self.size_bytes(), "element count");
        match self {
            DType::F32 => {
                for (o, b) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                    *o = f32::from_le_bytes(*b);
                }
            }
            DType::F16 => {
                for (o, b) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                    *o = half::f16::from_le_bytes(*b).to_f32();
                }
            }
            DType::Bf16 => {
                for (o, b) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                    *o = half::bf16::from_le_bytes(*b).to_f32();
                }
            }
            DType::I8 => {
                for (o, b) in out.iter_mut().zip(bytes) {
                    *o = f32::from(b.cast_signed());
                }
            }
            DType::U8 => {
                for (o, b) in out.iter_mut().zip(bytes) {
                    *o = f32::from(*b);
                }
            }
            DType::I64 => {
                for (o, b) in out.iter_mut().zip(bytes.as_chunks::<8>().0) {
                    *o = i64::from_le_bytes(*b) as f32;
                }
            }
        }
    }
}
