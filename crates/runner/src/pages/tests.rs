//! Pages against a plain model: every cell remembers the whole text that it was written for.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

/// What a cell holds: the text up to its position, as a number that no other text has.
type Cell = Option<u64>;

/// Numbers texts, so that equal prefixes have equal numbers.
#[derive(Default)]
struct Names(HashMap<(u64, u32, Option<SoftKey>), u64>);

impl std::hash::Hash for SoftKey {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (self.start, self.len, self.hash).hash(state);
    }
}

impl Names {
    /// The name of each prefix of a text.
    fn of(&mut self, text: &Text<'_>) -> Vec<u64> {
        let mut before = text.scope << 40;
        let keys = |p: usize| text.soft.iter().find(|k| k.start <= p && p < k.start + k.len);
        let tokens = text.tokens.iter().enumerate();
        let names = tokens.map(|(p, token)| {
            let next = self.0.len() as u64 + 1;
            before = *self.0.entry((before, *token, keys(p).copied())).or_insert(next);
            before
        });
        names.collect()
    }
}

struct Sequence {
    held: Held,
    tokens: Vec<u32>,
    soft: Vec<SoftKey>,
    scope: u64,
}

impl Sequence {
    fn text(&self) -> Text<'_> {
        Text { tokens: &self.tokens, soft: &self.soft, scope: self.scope }
    }
}

/// Pages, the cells that an engine would have, and the sequences.
struct World {
    pages: Pages,
    cells: Vec<Vec<[Cell; PAGE]>>,
    live: Vec<Sequence>,
    names: Names,
    reused: usize,
    copied: usize,
}

impl World {
    fn new(windows: &[Option<u32>], n_pages: usize) -> Self {
        let groups: Vec<KvGroup> =
            windows.iter().map(|window| KvGroup { window: *window, states: vec![] }).collect();
        World {
            pages: Pages::new(&groups, |_| n_pages),
            cells: vec![vec![[None; PAGE]; n_pages]; windows.len()],
            live: vec![],
            names: Names::default(),
            reused: 0,
            copied: 0,
        }
    }

    fn admit(&mut self, tokens: Vec<u32>, soft: Vec<SoftKey>, scope: u64) -> usize {
        let mut copies = vec![];
        let text = Text { tokens: &tokens, soft: &soft, scope };
        let prospect = self.pages.prospect(&text, 64, (usize::MAX, 0));
        let held = self.pages.start(&text, (usize::MAX, tokens.len()), &mut copies);
        assert!(held.len() < tokens.len(), "one token is left to run");
        assert!(held.len() <= prospect.reused);
        assert_eq!(text.whole(held.len()), held.len(), "soft tokens are not split");
        for PageCopy { group, from, to } in copies {
            self.cells[group][to.index()] = self.cells[group][from.index()];
            self.copied += 1;
        }
        self.reused += held.len();
        let n = held.len();
        self.live.push(Sequence { held, tokens, soft, scope });
        self.check();
        n
    }

    /// Runs some tokens, new ones if those that are there were run. Ends the sequence if there is
    /// no room for it.
    fn extend(&mut self, i: usize, n: usize, fails: bool) {
        let end = self.live[i].held.len() + n;
        if self.pages.reach(&self.live[i].held) < end {
            return self.end(i);
        }
        let sequence = &mut self.live[i];
        assert!(self.pages.reserve(&mut sequence.held, end));
        while sequence.tokens.len() < end {
            sequence.tokens.push(sequence.tokens.len() as u32 % 2);
        }
        let names = self.names.of(&sequence.text());
        let start = sequence.held.len();
        let tables: Vec<PageTable<'_>> = sequence.held.tables().collect();
        for (g, table) in tables.iter().enumerate() {
            for (p, name) in names.iter().enumerate().take(end).skip(start) {
                let (page, place) = table.find(p).expect("reserved");
                // A write that fails leaves anything.
                self.cells[g][page.index()][place] = (!fails).then_some(*name);
            }
        }
        if fails {
            let sequence = &self.live[i];
            self.pages.distrust(&sequence.held, start);
            return self.end(i);
        }
        let Sequence { held, tokens, soft, scope } = &mut self.live[i];
        self.pages.wrote(held, &Text { tokens, soft, scope: *scope }, n);
        self.check();
    }

    fn end(&mut self, i: usize) {
        let mut sequence = self.live.swap_remove(i);
        self.pages.release(&mut sequence.held);
        self.check();
    }

    /// Every sequence finds its own text wherever its next token looks, and counts agree.
    fn check(&mut self) {
        let mut refs: HashMap<(usize, PageId), u32> = HashMap::new();
        for sequence in &self.live {
            let names = self.names.of(&sequence.text());
            let n = sequence.held.len();
            for (g, table) in sequence.held.tables().enumerate() {
                let seen = self.pages.groups[g].first_seen(n);
                for (p, name) in names.iter().enumerate().take(n).skip(seen) {
                    let (page, place) = table.find(p).expect("what the next token sees is held");
                    assert_eq!(self.cells[g][page.index()][place], Some(*name), "{g} {p}");
                }
                table.pages.iter().for_each(|page| *refs.entry((g, *page)).or_default() += 1);
            }
        }
        for (g, group) in self.pages.groups.iter().enumerate() {
            group.pool.check();
            for page in (0..group.pool.len() as u32).map(PageId) {
                let held = refs.get(&(g, page)).copied().unwrap_or(0);
                assert_eq!(group.pool.refs(page), held, "group {g}, page {}", page.0);
                if let Some(id) = group.pool.node(page) {
                    assert_eq!(self.pages.tree.get(id).pages[g], Some(page));
                }
            }
        }
        for (id, node) in self.pages.tree.iter() {
            for (g, page) in node.pages.iter().enumerate() {
                assert!(page.is_none_or(|p| self.pages.groups[g].pool.node(p) == Some(id)));
            }
            assert!(node.children.iter().all(|c| self.pages.tree.get(*c).parent == Some(id)));
        }
    }

    /// Ends everything: all pages come back.
    fn finish(mut self) {
        while !self.live.is_empty() {
            self.end(0);
        }
        self.pages.forget();
        for group in &self.pages.groups {
            assert_eq!(group.pool.n_free(), group.pool.len());
        }
        assert_eq!(self.pages.tree.iter().count(), 0, "no node is left");
    }
}

fn numbers(n: usize, from: u32) -> Vec<u32> {
    (0..n as u32).map(|i| i.wrapping_mul(31) % 97 + from).collect()
}

#[test]
fn a_text_is_found_after_its_sequence_has_ended() {
    let mut world = World::new(&[None], 16);
    let text = numbers(300, 0);
    assert_eq!(world.admit(text.clone(), vec![], 0), 0);
    world.extend(0, 300, false);
    world.end(0);
    // The whole tail is taken as it is, but for the token that is left to run.
    assert_eq!(world.admit(text.clone(), vec![], 0), 299);
    assert_eq!(world.copied, 1, "what comes after in the page stays");
    world.end(0);
    let longer: Vec<u32> = text.iter().copied().chain([7; 20]).collect();
    assert_eq!(world.admit(longer.clone(), vec![], 0), 300);
    assert_eq!(world.copied, 1, "nobody else goes on from there");
    // Two that go on from the same place: one of them copies.
    assert_eq!(world.admit(longer, vec![], 0), 300);
    assert_eq!(world.copied, 2);
    assert_eq!(world.admit(text.clone(), vec![], 9), 0, "another scope");
    // Parts in the middle of the second page.
    let mut other = text[..200].to_vec();
    other.extend([99; 50]);
    assert_eq!(world.admit(other, vec![], 0), 200);
    world.finish();
}

#[test]
fn a_window_keeps_what_the_next_token_sees() {
    let mut world = World::new(&[None, Some(130)], 20);
    let text = numbers(1000, 0);
    world.admit(text.clone(), vec![], 0);
    for _ in 0..10 {
        world.extend(0, 100, false);
        let windowed = world.live[0].held.tables().nth(1).unwrap();
        assert!(windowed.pages.len() <= 3);
    }
    // All pages that were let go are still there.
    assert_eq!(world.admit(text[..500].to_vec(), vec![], 0), 499);
    world.finish();
}

#[test]
fn a_window_that_was_given_up_is_written_again() {
    let mut world = World::new(&[None, Some(130)], 12);
    let text = numbers(1000, 0);
    world.admit(text.clone(), vec![], 0);
    for _ in 0..10 {
        world.extend(0, 100, false);
    }
    world.end(0);
    // 8 pages of the windowed group hold other texts by now.
    for other in 0..3 {
        world.admit(numbers(500, 200 + other), vec![], 1);
        world.extend(0, 500, false);
        world.end(0);
    }
    let n = world.admit(text[..900].to_vec(), vec![], 0);
    assert!(n < 899, "{n}");
    let rest = 900 - world.live[0].held.len();
    world.extend(0, rest, false);
    world.finish();
}

#[test]
fn a_failed_write_is_never_found() {
    let mut world = World::new(&[None], 8);
    world.admit(numbers(300, 0), vec![], 0);
    world.extend(0, 200, false);
    world.extend(0, 100, true);
    // The second page was half written when the call failed.
    assert_eq!(world.admit(numbers(300, 0), vec![], 0), 128);
    world.finish();
}

#[test]
fn soft_tokens_are_what_they_are_made_of() {
    let key = |start, len, byte| SoftKey { start, len, hash: [byte; 32] };
    let mut world = World::new(&[None], 32);
    let tokens = vec![5; 400];
    world.admit(tokens.clone(), vec![key(100, 60, 1), key(300, 10, 2)], 0);
    world.extend(0, 400, false);
    world.end(0);
    let mut found = |soft: Vec<SoftKey>, n: usize| {
        let found = world.admit(tokens[..n].to_vec(), soft, 0);
        world.end(0);
        found
    };
    assert_eq!(found(vec![key(100, 60, 1), key(300, 10, 2)], 400), 399);
    assert_eq!(found(vec![key(100, 60, 1), key(300, 10, 9)], 400), 300);
    assert_eq!(found(vec![key(100, 60, 1)], 400), 300, "text where an image was");
    assert_eq!(found(vec![key(100, 60, 9)], 400), 100);
    assert_eq!(found(vec![key(100, 61, 1)], 400), 100);
    assert_eq!(found(vec![], 400), 100);
    assert_eq!(found(vec![key(100, 60, 1), key(200, 4, 1)], 400), 200, "an image where text was");
    // A prompt that ends in an image leaves a token to run, and so the whole image.
    assert_eq!(found(vec![key(100, 60, 1), key(300, 10, 2)], 310), 300);
    assert_eq!(found(vec![key(100, 60, 1), key(300, 10, 2)], 311), 310);
    world.finish();
}

#[test]
fn two_that_write_the_same_page_end_up_with_one() {
    let mut world = World::new(&[None, Some(300)], 16);
    for _ in 0..2 {
        world.admit(numbers(256, 0), vec![], 0);
    }
    world.extend(0, 256, false);
    assert_eq!(world.pages.groups[0].pool.available(), 14);
    world.extend(1, 256, false);
    assert_eq!(world.pages.groups[0].pool.available(), 14);
    world.finish();
}

#[derive(Clone, Debug)]
enum Step {
    /// A prompt that begins like what was run before, up to a position, and goes on with `n` tokens.
    Admit {
        like: usize,
        up_to: usize,
        n: usize,
        scope: u64,
        image: Option<(usize, u8)>,
    },
    Extend {
        which: usize,
        n: usize,
    },
    Fail {
        which: usize,
        n: usize,
    },
    End {
        which: usize,
    },
    Forget,
}

fn step() -> impl Strategy<Value = Step> {
    let admit =
        (0usize..40, 0usize..500, 1usize..200, 0u64..2, prop::option::of((0usize..300, 0u8..3)))
            .prop_map(|(like, up_to, n, scope, image)| Step::Admit {
                like,
                up_to,
                n,
                scope,
                image,
            });
    prop_oneof![
        4 => admit,
        8 => (0usize..8, 1usize..150).prop_map(|(which, n)| Step::Extend { which, n }),
        1 => (0usize..8, 1usize..150).prop_map(|(which, n)| Step::Fail { which, n }),
        3 => (0usize..8).prop_map(|which| Step::End { which }),
        1 => Just(Step::Forget),
    ]
}

fn play(windows: &[Option<u32>], n_pages: usize, steps: Vec<Step>) -> (usize, usize) {
    let mut world = World::new(windows, n_pages);
    let mut texts: Vec<(Vec<u32>, Vec<SoftKey>)> = vec![(vec![], vec![])];
    for (i, step) in steps.into_iter().enumerate() {
        let pick = |which: usize, n: usize| if n == 0 { None } else { Some(which % n) };
        match step {
            Step::Admit { like, up_to, n, scope, image } => {
                let (tokens, soft) = &texts[like % texts.len()];
                let up_to = up_to.min(tokens.len());
                let mut tokens = tokens[..up_to].to_vec();
                let mut soft: Vec<SoftKey> =
                    soft.iter().filter(|k| k.start + k.len <= up_to).copied().collect();
                tokens.extend((0..n).map(|j| (i + j) as u32 % 3));
                let end = soft.last().map_or(0, |k| k.start + k.len);
                if let Some((at, byte)) = image
                    && end + at + 20 < tokens.len()
                {
                    soft.push(SoftKey { start: end + at, len: 20, hash: [byte; 32] });
                }
                world.admit(tokens, soft, scope);
            }
            Step::Extend { which, n } => {
                if let Some(which) = pick(which, world.live.len()) {
                    let Sequence { tokens, soft, .. } = &world.live[which];
                    texts.push((tokens.clone(), soft.clone()));
                    world.extend(which, n, false);
                }
            }
            Step::Fail { which, n } => {
                if let Some(which) = pick(which, world.live.len()) {
                    world.extend(which, n, true);
                }
            }
            Step::End { which } => {
                if let Some(which) = pick(which, world.live.len()) {
                    world.end(which);
                }
            }
            Step::Forget => world.pages.forget(),
        }
        let keep = texts.len().saturating_sub(40);
        texts.drain(1..1 + keep.min(texts.len() - 1));
    }
    let counts = (world.reused, world.copied);
    world.finish();
    counts
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn pages_hold_what_they_should(
        windows in prop::sample::select(vec![
            vec![None],
            vec![None, Some(40)],
            vec![None, Some(200), Some(1)],
            vec![Some(129)],
        ]),
        n_pages in 6usize..24,
        steps in prop::collection::vec(step(), 1..120),
    ) {
        play(&windows, n_pages, steps);
    }
}

#[test]
fn ten_thousand_steps_lose_no_page() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let steps = prop::collection::vec(step(), 10_000..10_001);
    let steps = steps.new_tree(&mut runner).unwrap().current();
    let (reused, copied) = play(&[None, Some(150)], 32, steps);
    assert!(reused > 10_000 && copied > 100, "{reused} {copied}");
}
