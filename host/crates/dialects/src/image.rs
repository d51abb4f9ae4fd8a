//! Images, which three of the dialects can say, each in its own words.
//! Anything else that is no text stays in the dialect that it came in.

use serde_json::{Value, json};

/// Where an image is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Image {
    /// At an address.
    Url(String),
    /// Here, in base64.
    Data {
        /// E.g. `image/png`.
        media_type: String,
        /// Its bytes.
        base64: String,
    },
}

impl Image {
    /// The image in a part of any dialect; `None` for a part that is none, or that only its own provider can find.
    pub(crate) fn of(kind: &str, value: &Value) -> Option<Self> {
        let text = |path: &str| value.pointer(path).and_then(Value::as_str);
        match (kind, text("/source/type")) {
            ("image_url", _) => text("/image_url/url").map(Self::of_url),
            ("input_image", _) => text("/image_url").map(Self::of_url),
            ("image", Some("url")) => text("/source/url").map(Self::of_url),
            ("image", Some("base64")) => Some(Self::Data {
                media_type: text("/source/media_type")?.to_owned(),
                base64: text("/source/data")?.to_owned(),
            }),
            _ => None,
        }
    }

    fn of_url(url: &str) -> Self {
        let data = url.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,"));
        match data {
            Some((media_type, base64)) => Self::Data { media_type: media_type.to_owned(), base64: base64.to_owned() },
            None => Self::Url(url.to_owned()),
        }
    }

    /// The address, which holds the image itself where it has no other.
    pub(crate) fn url(&self) -> String {
        match self {
            Self::Url(url) => url.clone(),
            Self::Data { media_type, base64 } => format!("data:{media_type};base64,{base64}"),
        }
    }

    /// Anthropic's block.
    pub(crate) fn to_messages(&self) -> Value {
        let source = match self {
            Self::Url(url) => json!({ "type": "url", "url": url }),
            Self::Data { media_type, base64 } => {
                json!({ "type": "base64", "media_type": media_type, "data": base64 })
            }
        };
        json!({ "type": "image", "source": source })
    }

    /// The part of a responses item.
    pub(crate) fn to_responses(&self) -> Value {
        json!({ "type": "input_image", "image_url": self.url(), "detail": "auto" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_the_same_in_every_dialect() {
        for url in ["https://example.org/a.png", "data:image/png;base64,AAAA"] {
            let image = Image::of("image_url", &json!({ "type": "image_url", "image_url": { "url": url } }));
            let image = image.expect("an image");
            assert_eq!(image.url(), url);
            assert_eq!(Image::of("image", &image.to_messages()), Some(image.clone()));
            assert_eq!(Image::of("input_image", &image.to_responses()), Some(image));
        }
        assert_eq!(Image::of("image", &json!({ "source": { "type": "file", "file_id": "f" } })), None);
        assert_eq!(Image::of("document", &json!({})), None);
    }
}
