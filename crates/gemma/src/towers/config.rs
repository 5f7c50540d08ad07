//! Towers as tables of values.

use lapidary_program::PatchLayout;

/// What a model has besides its text side.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Towers {
    /// What sees.
    pub vision: Option<Vision>,
    /// What hears.
    pub audio: Option<Audio>,
}

/// What sees.
#[derive(Clone, Debug, PartialEq)]
pub enum Vision {
    /// Gemma 3: a SigLIP encoder, pooling and a projector.
    Siglip(Siglip),
    /// Gemma 4: an encoder with positions in two directions, and pooling.
    Tower(VisionTower),
    /// Gemma 4 12B: patches go straight into the model.
    Patches(PatchesConfig),
}

/// What hears.
#[derive(Clone, Debug, PartialEq)]
pub enum Audio {
    /// Gemma 4: convolutions over a mel spectrum, then a conformer.
    Tower(AudioTower),
    /// Gemma 4 12B: frames of samples go straight into the model.
    Frames(AudioFramesConfig),
}

/// Gemma 3's encoder.
#[derive(Clone, Debug, PartialEq)]
pub struct Siglip {
    /// Channels of the residual stream.
    pub hidden_size: u32,
    /// Inner channels of an MLP.
    pub intermediate_size: u32,
    /// Layers.
    pub n_layers: u32,
    /// Heads.
    pub n_heads: u32,
    /// Pixels of an image's side.
    pub image_size: u32,
    /// Pixels of a patch's side.
    pub patch_size: u32,
    /// Patches of the side of one soft token.
    pub pool: u32,
    /// Under every root of a norm.
    pub layer_norm_eps: f32,
    /// Added to the weight of the projector's norm: 1 in Hugging Face checkpoints, 0 in GGUF files.
    pub norm_offset: f32,
}

/// Gemma 4's encoder.
#[derive(Clone, Debug, PartialEq)]
pub struct VisionTower {
    /// Channels of the residual stream.
    pub hidden_size: u32,
    /// Inner channels of an MLP.
    pub intermediate_size: u32,
    /// Layers.
    pub n_layers: u32,
    /// Heads of queries, keys and values.
    pub n_heads: u32,
    /// Elements of one head.
    pub head_dim: u32,
    /// Pixels of a patch's side.
    pub patch_size: u32,
    /// Patches of the side of one soft token.
    pub pool: u32,
    /// Rows of each of the two position tables.
    pub n_positions: u32,
    /// Under every root of a norm.
    pub rms_norm_eps: f32,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Whether linears bound what they take and give.
    pub clipped: bool,
    /// Whether soft rows are standardised.
    pub standardise: bool,
    /// The order of numbers in a patch.
    pub layout: PatchLayout,
}

/// Gemma 4 12B's patches.
#[derive(Clone, Debug, PartialEq)]
pub struct PatchesConfig {
    /// Channels between the patch and the model.
    pub hidden_size: u32,
    /// Pixels of a patch's side.
    pub patch_size: u32,
    /// Rows of each of the two position tables.
    pub n_positions: u32,
    /// Under the root of the last norm.
    pub rms_norm_eps: f32,
    /// The order of numbers in a patch.
    pub layout: PatchLayout,
    /// How the two position tables stand in one.
    pub tables: PositionTables,
}

/// How the tables of columns and rows stand in one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PositionTables {
    /// All of the columns', then all of the rows'.
    Apart,
    /// A row of one and a row of the other by turns.
    ByTurns,
}

/// Gemma 4's conformer.
#[derive(Clone, Debug, PartialEq)]
pub struct AudioTower {
    /// Channels of the residual stream.
    pub hidden_size: u32,
    /// Layers.
    pub n_layers: u32,
    /// Heads.
    pub n_heads: u32,
    /// Numbers of a frame.
    pub n_mels: u32,
    /// Channels that the two convolutions make.
    pub conv_channels: [u32; 2],
    /// Rows that the depthwise convolution looks at.
    pub conv_kernel: u32,
    /// Keys that a query sees, itself included.
    pub window: u32,
    /// Bounds every score of attention.
    pub logit_cap: f32,
    /// Multiplies what an MLP adds.
    pub residual_weight: f32,
    /// Channels that the tower gives.
    pub output_size: u32,
    /// Under every root of a norm.
    pub rms_norm_eps: f32,
    /// Whether linears bound what they take and give.
    pub clipped: bool,
    /// Whether queries are scaled by the softplus of the stored vector, or by the vector itself.
    pub softplus: bool,
}

/// Gemma 4 12B's frames.
#[derive(Clone, Debug, PartialEq)]
pub struct AudioFramesConfig {
    /// Samples of a frame.
    pub len: u32,
    /// Under the root of the norm.
    pub rms_norm_eps: f32,
}

impl Towers {
    /// Whether there is text only.
    pub fn is_empty(&self) -> bool {
        self.vision.is_none() && self.audio.is_none()
    }
}
