//! Images, videos and audio clips on their way into a prompt.
//!
//! Whoever decodes them makes [`SoftInput`]s: what a method of the program is fed, and how many
//! soft tokens come out of it. A [`Medium`] is what takes the place of one placeholder of the chat
//! template: text and soft tokens in turn. A [`Prompt`] is the result.

use std::ops::Range;
use std::sync::Arc;

use lapidary_program::{Media, Modality, SoftTokens, input, method};

use crate::error::{Error, Result};
use crate::tokenizer::Tokenizer;

/// What a method is fed to make soft rows.
#[derive(Clone, Debug)]
pub struct SoftInput {
    /// The method: `vision` or `audio`.
    pub method: &'static str,
    /// The rows it takes, by the input's name.
    pub rows: (&'static str, Vec<f32>),
    /// What goes along with each row, by the input's name.
    pub indices: Vec<(&'static str, Vec<i32>)>,
    /// Soft rows that it makes.
    pub n_soft: usize,
    /// Whether its soft tokens see each other in both directions, where the model has that.
    pub block: bool,
    /// Of all the above: soft tokens with the same hash are the same.
    pub hash: [u8; 32],
}

/// What takes the place of one placeholder.
#[derive(Clone, Debug)]
pub struct Medium {
    modality: Modality,
    pieces: Vec<Piece>,
}

#[derive(Clone, Debug)]
enum Piece {
    Text(String),
    Soft(Arc<SoftInput>),
}

/// Tokens, and the soft tokens among them.
#[derive(Clone, Debug, Default)]
pub struct Prompt {
    /// Ids; at soft positions any id of the vocabulary.
    pub tokens: Vec<u32>,
    /// Soft tokens, in order.
    pub soft: Vec<SoftRun>,
}

/// Soft tokens of one image, frame or audio.
#[derive(Clone, Debug)]
pub struct SoftRun {
    /// The position of the first.
    pub start: usize,
    /// What they are made of.
    pub input: Arc<SoftInput>,
}

impl SoftInput {
    /// An image as the method `vision` takes it: its patches, and of each its number, column and
    /// row.
    pub fn image(
        patches: Vec<f32>,
        [number, column, row]: [Vec<i32>; 3],
        n_soft: usize,
        hash: [u8; 32],
    ) -> Self {
        SoftInput {
            method: method::VISION,
            rows: (input::PATCHES, patches),
            indices: vec![
                (input::PATCH_INDEX, number),
                (input::PATCH_X, column),
                (input::PATCH_Y, row),
            ],
            n_soft,
            block: true,
            hash,
        }
    }
}

impl Medium {
    /// An image. `crops` come after the whole one, for programs that know crops.
    pub fn image(media: &Media, whole: SoftInput, crops: Vec<SoftInput>) -> Result<Self> {
        let spec = media.image.as_ref().ok_or_else(|| Error::modality(media, Modality::Image))?;
        let mut pieces = Vec::new();
        match (&spec.pan_and_scan, crops.is_empty()) {
            (_, true) => surround(&mut pieces, "", &spec.tokens, whole),
            (None, false) => {
                return Err(Error::param("pan_and_scan", "this model knows no crops of images"));
            }
            (Some(text), false) => {
                surround(&mut pieces, &text.before, &spec.tokens, whole);
                for (i, crop) in crops.into_iter().enumerate() {
                    let between = if i == 0 { &text.between } else { &text.separator };
                    surround(&mut pieces, between, &spec.tokens, crop);
                }
            }
        }
        Ok(Medium { modality: Modality::Image, pieces })
    }

    /// A video: frames with the time that each is shown at, as the model reads it.
    pub fn video(media: &Media, frames: Vec<(String, SoftInput)>) -> Result<Self> {
        let spec = media.video.as_ref().ok_or_else(|| Error::modality(media, Modality::Video))?;
        if frames.is_empty() {
            return Err(Error::param("video", "it has no frames"));
        }
        let mut pieces = Vec::new();
        for (i, (time, frame)) in frames.into_iter().enumerate() {
            let separator = if i == 0 { "" } else { spec.separator.as_str() };
            surround(&mut pieces, &format!("{separator}{time} "), &spec.tokens, frame);
        }
        Ok(Medium { modality: Modality::Video, pieces })
    }

    /// An audio clip.
    pub fn audio(media: &Media, input: SoftInput) -> Result<Self> {
        let spec = media.audio.as_ref().ok_or_else(|| Error::modality(media, Modality::Audio))?;
        let mut pieces = Vec::new();
        surround(&mut pieces, "", &spec.tokens, input);
        Ok(Medium { modality: Modality::Audio, pieces })
    }

    /// What it is.
    pub fn modality(&self) -> Modality {
        self.modality
    }

    /// What its soft tokens are made of, in order.
    pub fn inputs(&self) -> impl Iterator<Item = &Arc<SoftInput>> {
        self.pieces.iter().filter_map(|p| match p {
            Piece::Soft(input) => Some(input),
            Piece::Text(_) => None,
        })
    }
}

fn surround(pieces: &mut Vec<Piece>, before: &str, tokens: &SoftTokens, input: SoftInput) {
    pieces.push(Piece::Text(format!("{before}{}", tokens.before)));
    pieces.push(Piece::Soft(Arc::new(input)));
    pieces.push(Piece::Text(tokens.after.clone()));
}

/// Where the soft tokens of a modality stand, if a program takes it.
pub(crate) fn soft_tokens(media: &Media, modality: Modality) -> Option<&SoftTokens> {
    match modality {
        Modality::Image => media.image.as_ref().map(|s| &s.tokens),
        Modality::Video => media.video.as_ref().map(|s| &s.tokens),
        Modality::Audio => media.audio.as_ref().map(|s| &s.tokens),
    }
}

impl From<Vec<u32>> for Prompt {
    fn from(tokens: Vec<u32>) -> Self {
        Prompt { tokens, soft: vec![] }
    }
}

impl From<&[u32]> for Prompt {
    fn from(tokens: &[u32]) -> Self {
        tokens.to_vec().into()
    }
}

impl<const N: usize> From<&[u32; N]> for Prompt {
    fn from(tokens: &[u32; N]) -> Self {
        tokens.to_vec().into()
    }
}

impl SoftRun {
    /// Its positions.
    pub fn range(&self) -> Range<usize> {
        self.start..self.start + self.input.n_soft
    }
}

/// A prompt that is being put together. Text is gathered until a soft token comes, so that it is
/// tokenised as if it stood there alone: soft tokens stand between special tokens.
pub(crate) struct Assembly<'a> {
    tokenizer: &'a Tokenizer,
    guard: Option<char>,
    /// The id that stands at soft positions.
    filler: u32,
    text: String,
    prompt: Prompt,
}

impl<'a> Assembly<'a> {
    pub(crate) fn new(tokenizer: &'a Tokenizer, guard: Option<char>, filler: u32) -> Self {
        Assembly { tokenizer, guard, filler, text: String::new(), prompt: Prompt::default() }
    }

    pub(crate) fn token(&mut self, id: u32) {
        self.prompt.tokens.push(id);
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.text.push_str(text);
    }

    pub(crate) fn medium(&mut self, medium: &Medium) -> Result<()> {
        for piece in &medium.pieces {
            match piece {
                Piece::Text(text) => self.text(text),
                Piece::Soft(input) => {
                    self.flush()?;
                    let start = self.prompt.tokens.len();
                    self.prompt.tokens.resize(start + input.n_soft, self.filler);
                    self.prompt.soft.push(SoftRun { start, input: input.clone() });
                }
            }
        }
        Ok(())
    }

    /// Adds text in which each placeholder stands for the next medium of its kind.
    pub(crate) fn template(
        &mut self,
        text: &str,
        placeholders: &[(Modality, &str)],
        media: &[Medium],
    ) -> Result<()> {
        let mut rest = text;
        let mut left = media;
        loop {
            let next = placeholders.iter().filter_map(|(m, p)| Some((rest.find(p)?, p.len(), *m)));
            let Some((at, len, modality)) = next.min_by_key(|(at, ..)| *at) else { break };
            self.text(&rest[..at]);
            rest = &rest[at + len..];
            let Some((medium, others)) = left.split_first() else {
                return Err(Error::MediaCount { given: media.len(), shown: None });
            };
            if medium.modality != modality {
                return Err(Error::MediaOrder { given: medium.modality, shown: modality });
            }
            self.medium(medium)?;
            left = others;
        }
        self.text(rest);
        match left.len() {
            0 => Ok(()),
            n => Err(Error::MediaCount { given: media.len(), shown: Some(media.len() - n) }),
        }
    }

    pub(crate) fn finish(mut self) -> Result<Prompt> {
        self.flush()?;
        Ok(self.prompt)
    }

    fn flush(&mut self) -> Result<()> {
        if !self.text.is_empty() {
            let tokens = self.tokenizer.encode_template(&self.text, self.guard)?;
            self.prompt.tokens.extend(tokens);
            self.text.clear();
        }
        Ok(())
    }
}

/// Puts media where ids already stand for their soft tokens: each input with the id of its kind, in
/// order.
pub(crate) fn place(
    mut tokens: Vec<u32>,
    inputs: Vec<(u32, Arc<SoftInput>)>,
    soft_ids: &[u32],
    filler: u32,
) -> Result<Prompt> {
    let ids = tokens.clone();
    let is_soft = |i: &usize| soft_ids.contains(&ids[*i]);
    let mut soft = Vec::with_capacity(inputs.len());
    let mut next = 0;
    for (id, input) in inputs {
        let start = (next..ids.len()).find(is_soft).unwrap_or(ids.len());
        let run = ids[start..].iter().take_while(|t| **t == id).count();
        if run < input.n_soft {
            return Err(Error::SoftCount { number: soft.len() + 1, made: input.n_soft, ids: run });
        }
        next = start + input.n_soft;
        tokens[start..next].fill(filler);
        soft.push(SoftRun { start, input });
    }
    match (next..ids.len()).filter(is_soft).count() {
        0 => Ok(Prompt { tokens, soft }),
        left => Err(Error::SoftCount { number: soft.len() + 1, made: 0, ids: left }),
    }
}

#[cfg(test)]
mod tests {
    use lapidary_program::{ImageSize, ImageSpec, PanAndScan, PatchLayout, Resample, VideoSpec};

    use super::*;

    const TOKENIZER: &[u8] = include_bytes!("../tests/data/tokenizer.json");

    fn tokens(before: &str, after: &str) -> SoftTokens {
        SoftTokens {
            placeholder: "<|turn>".into(),
            before: before.into(),
            after: after.into(),
            id: 390,
            is_padding: false,
        }
    }

    fn media() -> Media {
        let image = ImageSpec {
            size: ImageSize::Fixed { width: 4, height: 4 },
            resample: Resample::Bilinear,
            patch: 2,
            pool: 1,
            layout: PatchLayout::Planar,
            scale: 1.0,
            shift: 0.0,
            pan_and_scan: Some(PanAndScan {
                min_crop: 1,
                max_crops: 4,
                min_ratio: 1.2,
                before: "whole ".into(),
                between: " crops ".into(),
                separator: " ".into(),
            }),
            tokens: tokens("\n\n<|turn>", "<turn|>\n\n"),
        };
        let video = VideoSpec {
            max_frames: 4,
            budget: 4,
            separator: " ".into(),
            tokens: tokens("<|turn>", "<turn|>"),
        };
        Media { image: Some(image), video: Some(video), audio: None }
    }

    fn input(n_soft: usize, byte: u8) -> SoftInput {
        SoftInput {
            method: "vision",
            rows: ("patches", vec![]),
            indices: vec![],
            n_soft,
            block: true,
            hash: [byte; 32],
        }
    }

    fn tokenizer() -> Tokenizer {
        Tokenizer::from_json(TOKENIZER, 396).unwrap()
    }

    /// What the tokens of a prompt spell, soft runs as `{n}`.
    fn spelled(tokenizer: &Tokenizer, prompt: &Prompt) -> String {
        let mut text = String::new();
        let mut at = 0;
        for run in &prompt.soft {
            text += &tokenizer.decode(&prompt.tokens[at..run.start], true);
            text += &format!("{{{}}}", run.input.n_soft);
            at = run.range().end;
        }
        text + &tokenizer.decode(&prompt.tokens[at..], true)
    }

    #[test]
    fn a_placeholder_becomes_text_and_soft_tokens() {
        let (tokenizer, media) = (tokenizer(), media());
        let images = [
            Medium::image(&media, input(3, 1), vec![]).unwrap(),
            Medium::image(&media, input(2, 2), vec![input(1, 3), input(4, 4)]).unwrap(),
        ];
        let mut prompt = Assembly::new(&tokenizer, None, 0);
        let places = [(Modality::Image, "[I]")];
        prompt.template("a\n[I]b[I]", &places, &images).unwrap();
        let prompt = prompt.finish().unwrap();
        let want = "a\n\n\n<|turn>{3}<turn|>\n\nb\
                    whole \n\n<|turn>{2}<turn|>\n\n crops \
                    \n\n<|turn>{1}<turn|>\n\n \
                    \n\n<|turn>{4}<turn|>\n\n";
        assert_eq!(spelled(&tokenizer, &prompt), want);
        // Text before an image is tokenised together with the image's own.
        let alone = tokenizer.encode_template("a\n\n\n<|turn>", None).unwrap();
        assert_eq!(prompt.tokens[..alone.len()], alone);
        assert_eq!(prompt.soft[0].start, alone.len());
        assert!(prompt.soft.iter().all(|r| prompt.tokens[r.range()].iter().all(|t| *t == 0)));
    }

    #[test]
    fn frames_carry_their_time() {
        let (tokenizer, media) = (tokenizer(), media());
        let frames = vec![("00:00".into(), input(1, 1)), ("01:01".into(), input(1, 2))];
        let video = Medium::video(&media, frames).unwrap();
        let mut prompt = Assembly::new(&tokenizer, None, 0);
        prompt.medium(&video).unwrap();
        let want = "00:00 <|turn>{1}<turn|> 01:01 <|turn>{1}<turn|>";
        assert_eq!(spelled(&tokenizer, &prompt.finish().unwrap()), want);
        assert!(Medium::video(&media, vec![]).is_err());
        let refused = Medium::audio(&media, input(1, 1)).unwrap_err();
        assert_eq!(refused.to_string(), "this model takes text, image and video, not audio");
    }

    #[test]
    fn media_and_placeholders_must_agree() {
        let (tokenizer, media) = (tokenizer(), media());
        let image = || Medium::image(&media, input(1, 1), vec![]).unwrap();
        let video = || Medium::video(&media, vec![("00:00".into(), input(1, 1))]).unwrap();
        let places = [(Modality::Image, "[I]"), (Modality::Video, "[V]")];
        let try_it = |text: &str, media: &[Medium]| {
            let mut prompt = Assembly::new(&tokenizer, None, 0);
            prompt.template(text, &places, media).map_err(|e| e.to_string())
        };
        assert_eq!(try_it("[I][V]", &[image(), video()]), Ok(()));
        let wrong = [
            ("[I]", vec![], "0 media were given and the chat template shows more"),
            ("[I]", vec![image(), image()], "2 media were given and the chat template shows 1"),
            ("[V]", vec![image()], "the chat template shows video where image was given"),
        ];
        for (text, media, want) in wrong {
            assert_eq!(try_it(text, &media).unwrap_err(), want);
        }
    }

    #[test]
    fn ids_that_are_there_already_are_matched_in_order() {
        let inputs = || vec![(9, Arc::new(input(2, 1))), (9, Arc::new(input(1, 2)))];
        let prompt = place(vec![5, 9, 9, 6, 9, 7], inputs(), &[9], 0).unwrap();
        assert_eq!(prompt.tokens, [5, 0, 0, 6, 0, 7]);
        assert_eq!(prompt.soft.iter().map(|r| r.start).collect::<Vec<_>>(), [1, 4]);
        let touching = place(vec![9, 9, 9], inputs(), &[9], 0).unwrap();
        assert_eq!(touching.soft.iter().map(SoftRun::range).collect::<Vec<_>>(), [0..2, 2..3]);
        for ids in [vec![9, 5, 9], vec![9, 9, 5], vec![9, 9, 5, 9, 9]] {
            assert!(place(ids.clone(), inputs(), &[9], 0).is_err(), "{ids:?}");
        }
        let mixed = || vec![(9, Arc::new(input(1, 1))), (8, Arc::new(input(1, 2)))];
        assert!(place(vec![9, 8], mixed(), &[8, 9], 0).is_ok());
        assert!(
            place(vec![8, 9], mixed(), &[8, 9], 0).is_err(),
            "an audio clip where an image stands"
        );
    }
}
