//! Markdown as the body of a manual page (man(7)): headings, paragraphs, lists and code.

use clap_mangen::roff::{Inline, Roff, bold, italic, roman};
use pulldown_cmark::{Event, Parser, Tag, TagEnd};

/// The page that is being written, and the state of the reader.
#[derive(Default)]
struct Page {
    roff: Roff,
    line: Vec<Inline>,
    is_strong: bool,
    is_emphasis: bool,
    /// The paragraph is the first of a list's item and needs no macro of its own.
    is_item: bool,
    /// Within a block of code: its text.
    code: Option<String>,
}

/// The body of a page or section; its headings become subsections.
pub fn roff(markdown: &str) -> String {
    let mut page = Page::default();
    for event in Parser::new(markdown) {
        page.take(event);
    }
    page.roff.to_roff()
}

impl Page {
    fn take(&mut self, event: Event<'_>) {
        match event {
            Event::Start(Tag::CodeBlock(_)) => self.code = Some(String::new()),
            Event::End(TagEnd::CodeBlock) => self.end_code(),
            Event::Start(Tag::Strong) => self.is_strong = true,
            Event::End(TagEnd::Strong) => self.is_strong = false,
            Event::Start(Tag::Emphasis) => self.is_emphasis = true,
            Event::End(TagEnd::Emphasis) => self.is_emphasis = false,
            Event::Code(text) => self.line.push(bold(text.to_string())),
            Event::Text(text) => self.text(&text),
            Event::SoftBreak | Event::HardBreak => self.line.push(roman(" ")),
            Event::Start(Tag::Paragraph) if !std::mem::take(&mut self.is_item) => {
                self.roff.control("PP", []);
            }
            Event::Start(Tag::Item) => {
                self.flush();
                self.roff.control("IP", [r"\(bu", "2"]);
                self.is_item = true;
            }
            Event::End(TagEnd::Item) => {
                self.flush();
                self.is_item = false;
            }
            Event::End(TagEnd::Paragraph) => self.flush(),
            Event::End(TagEnd::Heading(_)) => {
                let title: String = std::mem::take(&mut self.line).iter().map(plain).collect();
                self.roff.control("SS", [title.as_str()]);
            }
            _ => {}
        }
    }

    fn text(&mut self, text: &str) {
        if let Some(code) = &mut self.code {
            return code.push_str(text);
        }
        self.line.push(match (self.is_strong, self.is_emphasis) {
            (true, _) => bold(text),
            (_, true) => italic(text),
            _ => roman(text),
        });
    }

    fn flush(&mut self) {
        let line = std::mem::take(&mut self.line);
        if !line.is_empty() {
            self.roff.text(line);
        }
    }

    fn end_code(&mut self) {
        self.flush();
        for (macro_name, argument) in [("PP", None), ("RS", Some("4")), ("nf", None)] {
            self.roff.control(macro_name, argument);
        }
        for line in self.code.take().unwrap_or_default().lines() {
            self.roff.text([roman(line)]);
        }
        for macro_name in ["fi", "RE"] {
            self.roff.control(macro_name, []);
        }
    }
}

fn plain(inline: &Inline) -> &str {
    match inline {
        Inline::Roman(text) | Inline::Italic(text) | Inline::Bold(text) => text,
        Inline::LineBreak => " ",
    }
}
