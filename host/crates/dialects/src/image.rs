//! Images, which three of the dialects can say, each in its own words.
//! Anything else that is no text stays in the dialect that it came in.

use serde_json::{Value, json};

/// An image: where it is, and how closely OpenAI's models are to look at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Image {
    place: Place,
    detail: Option<String>,
}

/// Where an image is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
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
        let place = match (kind, text("/source/type")) {
            ("image_url", _) => Place::of_url(text("/image_url/url")?),
            ("input_image", _) => Place::of_url(text("/image_url")?),
            ("image", Some("url")) => Place::of_url(text("/source/url")?),
            ("image", Some("base64")) => Place::Data {
                media_type: text("/source/media_type")?.to_owned(),
                base64: text("/source/data")?.to_owned(),
            },
            _ => return None,
        };
        let detail = text("/image_url/detail").or_else(|| text("/detail"));
        Some(Self { place, detail: detail.map(str::to_owned) })
    }

    /// The address, which holds the image itself where it has no other.
    pub(crate) fn url(&self) -> String {
        match &self.place {
            Place::Url(url) => url.clone(),
            Place::Data { media_type, base64 } => format!("data:{media_type};base64,{base64}"),
        }
    }

    /// Anthropic's block, which has no word for the detail.
    pub(crate) fn to_messages(&self) -> Value {
        let source = match &self.place {
            Place::Url(url) => json!({ "type": "url", "url": url }),
            Place::Data { media_type, base64 } => {
                json!({ "type": "base64", "media_type": media_type, "data": base64 })
            }
        };
        json!({ "type": "image", "source": source })
    }

    /// The part of a chat message.
    pub(crate) fn to_chat(&self) -> Value {
        let mut part = json!({ "type": "image_url", "image_url": { "url": self.url() } });
        if let Some(detail) = &self.detail {
            part["image_url"]["detail"] = json!(detail);
        }
        part
    }

    /// The part of a responses item.
    pub(crate) fn to_responses(&self) -> Value {
        let detail = self.detail.as_deref().unwrap_or("auto");
        json!({ "type": "input_image", "image_url": self.url(), "detail": detail })
    }
}

impl Place {
    fn of_url(url: &str) -> Self {
        let data = url.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,"));
        match data {
            Some((media_type, base64)) => Self::Data { media_type: media_type.to_owned(), base64: base64.to_owned() },
            None => Self::Url(url.to_owned()),
        }
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
            let theirs = Image::of("input_image", &image.to_responses()).expect("an image");
            assert_eq!(theirs.url(), url);
        }
        for detail in ["low", "high", "auto"] {
            let sent =
                json!({ "type": "image_url", "image_url": { "url": "https://example.org/a.png", "detail": detail } });
            let theirs = Image::of("image_url", &sent).expect("an image").to_responses();
            assert_eq!(theirs["detail"], detail);
            assert_eq!(Image::of("input_image", &theirs).expect("an image").to_chat(), sent);
        }
        assert_eq!(Image::of("image", &json!({ "source": { "type": "file", "file_id": "f" } })), None);
        assert_eq!(Image::of("document", &json!({})), None);
    }
}
