//! Pagination: answers to an operator that are longer than one message.
//!
//! # Problem
//! A message has at most [`FRAME_MAX`](crate::codec::FRAME_MAX) bytes, so that a wrong length
//! cannot take all memory. The status of 2,000 tenants at eight nodes is longer.
//!
//! # Mechanism
//! The text is cut into pages of [`PAGE_MAX`] bytes, each in a [`Reply::Page`]; the last one comes
//! in the [`Reply::Json`] that ends every answer. The operator puts them together with [`Pages`].
//!
//! Example: 2,500,000 bytes are two pages of 1 MiB, and `Json` with the other 402,848.
//!
//! # Bound
//! An operator takes [`ANSWER_MAX`] bytes at most.

use alloc::string::String;
use alloc::vec::Vec;

use crate::message::Reply;

/// Bytes of a page.
pub const PAGE_MAX: usize = 1 << 20;

/// Bytes of the longest answer: 100,000 tenants at eight nodes. Chosen by hand.
pub const ANSWER_MAX: usize = 512 << 20;

/// The messages of this answer, in their order.
pub fn split(mut text: String) -> Vec<Reply> {
    let mut replies = Vec::new();
    while text.len() > PAGE_MAX {
        let rest = text.split_off(text.floor_char_boundary(PAGE_MAX));
        replies.push(Reply::Page(core::mem::replace(&mut text, rest)));
    }
    replies.push(Reply::Json(text));
    replies
}

/// Puts an answer together.
#[derive(Clone, Debug)]
pub struct Pages {
    text: String,
    /// The longest answer that is taken, in bytes.
    max: usize,
}

impl Default for Pages {
    fn default() -> Self {
        Self { text: String::new(), max: ANSWER_MAX }
    }
}

impl Pages {
    /// Adds the next message of an answer. Gives the whole answer if that was the last one, or if
    /// there is none: it was refused, failed, or is longer than [`ANSWER_MAX`].
    pub fn add(&mut self, reply: Reply) -> Option<Reply> {
        match reply {
            Reply::Page(page) if self.text.len() + page.len() <= self.max => {
                self.text += &page;
                None
            }
            Reply::Page(_) => {
                self.text = String::new();
                let message = alloc::format!(
                    "the answer has more than {} bytes; ask for less, or over HTTP",
                    self.max
                );
                Some(Reply::Error { code: 1, message })
            }
            Reply::Json(last) => {
                self.text += &last;
                Some(Reply::Json(core::mem::take(&mut self.text)))
            }
            other => Some(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Decoder, FRAME_MAX, encode};

    #[test]
    fn an_answer_longer_than_a_message_comes_whole() {
        for length in [0, 1, PAGE_MAX, PAGE_MAX + 1, 2 * FRAME_MAX + 3] {
            // Characters of two bytes do not end where pages do.
            let text: String = "xé".chars().cycle().take(length).collect();
            let mut bytes = Vec::new();
            split(text.clone()).iter().for_each(|reply| encode(reply, &mut bytes).unwrap());
            let (mut decoder, mut pages) = (Decoder::<Reply>::new(), Pages::default());
            let mut answers = Vec::new();
            for chunk in bytes.chunks(60_000) {
                decoder.extend(chunk);
                while let Some(reply) = decoder.next_message().unwrap() {
                    answers.extend(pages.add(reply));
                }
            }
            assert_eq!(answers, [Reply::Json(text)]);
        }
    }

    #[test]
    fn a_page_is_full_before_there_is_another() {
        let pages = |length: usize| split("x".repeat(length)).len();
        assert_eq!([PAGE_MAX, PAGE_MAX + 1, 2 * PAGE_MAX].map(pages), [1, 2, 2]);
    }

    #[test]
    fn an_answer_without_an_end_is_given_up_and_its_memory_with_it() {
        assert_eq!(Pages::default().max, ANSWER_MAX);
        let mut pages = Pages { max: 8, ..Pages::default() };
        for page in ["xxx", "xxxx", "x"] {
            assert_eq!(pages.add(Reply::Page(page.into())), None);
        }
        let refused = pages.add(Reply::Page("x".into()));
        assert!(matches!(refused, Some(Reply::Error { code: 1, .. })));
        assert_eq!(pages.text.capacity(), 0);
        assert_eq!(pages.add(Reply::Json("y".into())), Some(Reply::Json("y".into())));
    }

    #[test]
    fn golden_bytes() {
        let page = postcard::to_allocvec(&Reply::Page("ab".into())).unwrap();
        assert_eq!(page, b"\x03\x02ab");
    }

    #[test]
    fn an_error_ends_the_pages() {
        let error = Reply::Error { code: 1, message: "no".into() };
        let mut pages = Pages::default();
        assert_eq!(pages.add(Reply::Page("a".into())), None);
        assert_eq!(pages.add(error.clone()), Some(error));
    }
}
