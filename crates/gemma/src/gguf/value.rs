use std::ops::Range;

/// A metadata value. Text and arrays are ranges into the file, so that a vocabulary of a quarter
/// of a million pieces costs no allocation per piece.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Any of the unsigned types.
    Unsigned(u64),
    /// Any of the signed types.
    Signed(i64),
    /// Any of the float types.
    Float(f64),
    /// A flag.
    Bool(bool),
    /// Text; not yet known to be UTF-8.
    Text(Range<usize>),
    /// Elements of one type.
    Array(Array),
}

/// An array of metadata values.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    /// Elements of fixed size, one after another.
    Scalars {
        /// Their type.
        kind: Scalar,
        /// Where they stand.
        bytes: Range<usize>,
    },
    /// Text; where each piece stands.
    Texts(Vec<Range<usize>>),
    /// Arrays of arrays.
    Nested(Vec<Array>),
}

/// The types of fixed size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Scalar {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    U64,
    I64,
    F64,
}

/// Number of the text type in the file.
pub(super) const TEXT: u32 = 8;
/// Number of the array type in the file.
pub(super) const ARRAY: u32 = 9;

impl Scalar {
    /// The type with a number, if it is one of fixed size.
    pub(super) fn from_id(id: u32) -> Option<Self> {
        Some(match id {
            0 => Scalar::U8,
            1 => Scalar::I8,
            2 => Scalar::U16,
            3 => Scalar::I16,
            4 => Scalar::U32,
            5 => Scalar::I32,
            6 => Scalar::F32,
            7 => Scalar::Bool,
            10 => Scalar::U64,
            11 => Scalar::I64,
            12 => Scalar::F64,
            _ => return None,
        })
    }

    /// Bytes of one element.
    pub const fn size_bytes(self) -> usize {
        match self {
            Scalar::U8 | Scalar::I8 | Scalar::Bool => 1,
            Scalar::U16 | Scalar::I16 => 2,
            Scalar::U32 | Scalar::I32 | Scalar::F32 => 4,
            Scalar::U64 | Scalar::I64 | Scalar::F64 => 8,
        }
    }

    /// Decodes one element; `None` if there are too few bytes or a flag is neither 0 nor 1.
    pub(super) fn decode(self, bytes: &[u8]) -> Option<Value> {
        Some(match self {
            Scalar::U8 => Value::Unsigned(u8::from_le_bytes(*bytes.first_chunk()?).into()),
            Scalar::U16 => Value::Unsigned(u16::from_le_bytes(*bytes.first_chunk()?).into()),
            Scalar::U32 => Value::Unsigned(u32::from_le_bytes(*bytes.first_chunk()?).into()),
            Scalar::U64 => Value::Unsigned(u64::from_le_bytes(*bytes.first_chunk()?)),
            Scalar::I8 => Value::Signed(i8::from_le_bytes(*bytes.first_chunk()?).into()),
            Scalar::I16 => Value::Signed(i16::from_le_bytes(*bytes.first_chunk()?).into()),
            Scalar::I32 => Value::Signed(i32::from_le_bytes(*bytes.first_chunk()?).into()),
            Scalar::I64 => Value::Signed(i64::from_le_bytes(*bytes.first_chunk()?)),
            Scalar::F32 => Value::Float(f32::from_le_bytes(*bytes.first_chunk()?).into()),
            Scalar::F64 => Value::Float(f64::from_le_bytes(*bytes.first_chunk()?)),
            Scalar::Bool => match bytes.first()? {
                0 => Value::Bool(false),
                1 => Value::Bool(true),
                _ => return None,
            },
        })
    }
}

impl Value {
    /// What it is, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Value::Signed(n) if *n < 0 => "a negative integer",
            Value::Unsigned(_) | Value::Signed(_) => "an integer",
            Value::Float(_) => "a float",
            Value::Bool(_) => "a flag",
            Value::Text(_) => "text",
            Value::Array(_) => "an array",
        }
    }

    /// As an integer that is not negative.
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Value::Unsigned(n) => Some(*n),
            Value::Signed(n) => u64::try_from(*n).ok(),
            _ => None,
        }
    }
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Array::Scalars { kind, bytes } => bytes.len().div_euclid(kind.size_bytes()),
            Array::Texts(texts) => texts.len(),
            Array::Nested(arrays) => arrays.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Files write floats as `f32`; this undoes the widening of [`Value::Float`].
#[allow(clippy::as_conversions)]
pub(super) fn narrow(x: f64) -> f32 {
    x as f32
}
