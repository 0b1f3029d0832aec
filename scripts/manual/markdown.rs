//! Sections of a Markdown file as roff, for manual pages (man(7)).

use clap_mangen::roff::{Inline, Roff, bold, italic, roman};
use pulldown_cmark::{CodeBlockKind, Event, HeadingLevel, Options, Parser, Tag, TagEnd};

/// From here on a paragraph names the tests that hold it, which is nothing for a reader of the manual.
const TESTS: &str = "Tests:";

/// What stands below the heading that begins with `title`, its subsections included; `None` where there is no such heading.
pub fn section(document: &str, title: &str) -> Option<String> {
    let mut level = None;
    let mut found = String::new();
    let mut is_code = false;
    for line in document.lines() {
        is_code ^= line.starts_with("```");
        let marks = line.chars().take_while(|c| *c == '#').count();
        let is_heading = !is_code && (1..=6).contains(&marks) && line[marks..].starts_with(' ');
        match level {
            None if is_heading && line[marks..].trim().starts_with(title) => level = Some(marks),
            None => {}
            Some(level) if is_heading && marks <= level => break,
            Some(_) => {
                found.push_str(line);
                found.push('\n');
            }
        }
    }
    level.map(|_| found)
}

/// The same without what names tests in parentheses.
fn without_tests(markdown: &str) -> String {
    let mut rest = markdown;
    let mut kept = String::new();
    while let Some((begin, length)) = rest.find("(`tests/").and_then(|at| Some((at, rest[at..].find("`)")? + 2))) {
        kept.push_str(rest[..begin].trim_end());
        rest = &rest[begin + length..];
    }
    kept + rest
}

/// Where the text goes that is being read.
#[derive(Default)]
struct Page {
    roff: Roff,
    line: Vec<Inline>,
    cells: Vec<Vec<Inline>>,
    is_strong: bool,
    is_emphasis: bool,
    /// Nesting of lists.
    depth: usize,
    /// The paragraph is the first of a list's item and needs no macro of its own.
    is_item: bool,
    is_over: bool,
}

/// Markdown as the body of a page, without title; its headings become subsections.
pub fn roff(markdown: &str) -> String {
    let mut page = Page::default();
    let mut code = None;
    for event in Parser::new_ext(&without_tests(markdown), Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::CodeBlock(CodeBlockKind::Indented | CodeBlockKind::Fenced(_))) => {
                code = Some(String::new())
            }
            Event::End(TagEnd::CodeBlock) => page.code(&code.take().unwrap_or_default()),
            Event::Text(text) if code.is_some() => code.iter_mut().for_each(|code| code.push_str(&text)),
            event => page.take(event),
        }
    }
    page.roff.to_roff()
}

impl Page {
    fn take(&mut self, event: Event<'_>) {
        match event {
            Event::Start(Tag::Strong) => self.is_strong = true,
            Event::End(TagEnd::Strong) => self.is_strong = false,
            Event::Start(Tag::Emphasis) => self.is_emphasis = true,
            Event::End(TagEnd::Emphasis) => self.is_emphasis = false,
            Event::Code(text) => self.push(bold(text.to_string())),
            Event::Text(text) => self.text(&text),
            Event::SoftBreak | Event::HardBreak => self.push(roman(" ")),
            Event::Start(Tag::Paragraph) if !std::mem::take(&mut self.is_item) => {
                self.roff.control("PP", []);
            }
            Event::End(TagEnd::Paragraph) => self.flush(),
            Event::Start(Tag::List(_)) => {
                self.flush();
                self.depth += 1;
                if self.depth > 1 {
                    self.roff.control("RS", []);
                }
            }
            Event::End(TagEnd::List(_)) => {
                self.flush();
                if self.depth > 1 {
                    self.roff.control("RE", []);
                }
                self.depth -= 1;
            }
            Event::Start(Tag::Item) => {
                self.roff.control("IP", [r"\(bu", "2"]);
                self.is_item = true;
            }
            Event::End(TagEnd::Item) => {
                self.flush();
                self.is_item = false;
            }
            Event::End(TagEnd::Heading(level)) => {
                let title: String = std::mem::take(&mut self.line).iter().map(plain).collect();
                let macro_name = if level <= HeadingLevel::H1 { "SH" } else { "SS" };
                self.roff.control(macro_name, [title.as_str()]);
            }
            Event::End(TagEnd::TableCell) => self.cells.push(std::mem::take(&mut self.line)),
            Event::End(TagEnd::TableHead) => self.cells.clear(),
            Event::End(TagEnd::TableRow) => self.row(),
            _ => {}
        }
    }

    fn text(&mut self, text: &str) {
        let (text, is_over) = match text.find(TESTS) {
            Some(place) => (text[..place].trim_end(), true),
            None => (text, false),
        };
        let inline = match (self.is_strong, self.is_emphasis) {
            (true, _) => bold(text),
            (_, true) => italic(text),
            _ => roman(text),
        };
        if !text.is_empty() {
            self.push(inline);
        }
        self.is_over |= is_over;
    }

    fn push(&mut self, inline: Inline) {
        if !self.is_over {
            self.line.push(inline);
        }
    }

    fn flush(&mut self) {
        let line = std::mem::take(&mut self.line);
        if !line.is_empty() {
            self.roff.text(line);
        }
        self.is_over = false;
    }

    /// A row of a table: its first cell is what is explained by the others.
    fn row(&mut self) {
        let mut cells = std::mem::take(&mut self.cells).into_iter();
        self.roff.control("TP", []);
        self.roff.text(cells.next().unwrap_or_default());
        let mut rest = Vec::new();
        for cell in cells.filter(|cell| !cell.is_empty()) {
            if !rest.is_empty() {
                rest.push(roman("; "));
            }
            rest.extend(cell);
        }
        self.roff.text(rest);
    }

    fn code(&mut self, code: &str) {
        self.flush();
        for macro_and_arguments in [("PP", None), ("RS", Some("4")), ("nf", None)] {
            self.roff.control(macro_and_arguments.0, macro_and_arguments.1);
        }
        for line in code.lines() {
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
