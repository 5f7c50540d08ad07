//! Images, audio and video that stand in a request. Nothing is fetched, and no path is read.

use lapidary::{Media, Modality};

use super::Result;
use super::base64;
use super::failure::Failure;

/// What a `data:` URI shows or plays. Other addresses are refused: a server that fetches what it is
/// told to can be made to fetch anything.
pub fn of_uri(uri: &str, kind: Modality, param: &str) -> Result<Media> {
    let Some(rest) = strip_scheme(uri) else {
        let what = "addresses are not fetched; send the bytes as `data:…;base64,…`";
        return Err(Failure::param(param, what));
    };
    let Some((head, data)) = rest.split_once(',') else {
        return Err(Failure::param(param, "this `data:` URI has no comma"));
    };
    let mime = head.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if !head.trim_end().to_ascii_lowercase().ends_with(";base64") {
        return Err(Failure::param(param, "a `data:` URI must be in base64"));
    }
    let fits = mime.is_empty()
        || mime == "application/octet-stream"
        || mime.split('/').next() == Some(kind.name());
    if !fits {
        let mime: String = mime.chars().take(60).collect();
        return Err(Failure::param(param, format!("`{mime}` is not {}", with_article(kind))));
    }
    of_base64(data, kind, param)
}

/// What bytes in base64 show or play.
pub fn of_base64(data: &str, kind: Modality, param: &str) -> Result<Media> {
    let bytes = base64::decode(data).ok_or_else(|| Failure::param(param, "this is not base64"))?;
    if bytes.is_empty() {
        return Err(Failure::param(param, format!("{} without bytes", with_article(kind))));
    }
    Ok(match kind {
        Modality::Image => Media::image(bytes),
        Modality::Audio => Media::audio(bytes),
        Modality::Video => Media::video(bytes),
    })
}

fn with_article(kind: Modality) -> &'static str {
    match kind {
        Modality::Image => "an image",
        Modality::Audio => "audio",
        Modality::Video => "a video",
    }
}

fn strip_scheme(uri: &str) -> Option<&str> {
    let (scheme, rest) = uri.split_once(':')?;
    scheme.trim().eq_ignore_ascii_case("data").then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bytes_are_taken() {
        let image = |uri: &str| of_uri(uri, Modality::Image, "x");
        assert!(image("data:image/png;base64,AAAA").is_ok());
        assert!(image("DATA:;base64,AAAA").is_ok());
        let refused = [
            "http://a/b.png",
            "https://169.254.169.254/latest",
            "file:///etc/passwd",
            "/etc/passwd",
            "http://a\\@b",
            "http://2130706433/",
            "http://[::ffff:127.0.0.1]/",
            "data:image/png,AAAA",
            "data:audio/wav;base64,AAAA",
            "data:text/html;base64,AAAA",
            "data:image/svg+xml,<svg/>",
            "data:image/png;base64,@@",
            "data:image/png;base64,",
            "data:",
            "",
        ];
        for uri in refused {
            assert_eq!(image(uri).unwrap_err().param.as_deref(), Some("x"), "{uri}");
        }
    }
}
