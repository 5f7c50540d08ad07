//! Whose turn it is, without an engine.

use lapidary_program::KvGroup;

use super::*;

const BOUND: Duration = Duration::from_millis(100);

fn scheduler(windows: &[Option<u32>], n_pages: usize, limits: Limits) -> Scheduler<()> {
    let groups: Vec<KvGroup> =
        windows.iter().map(|window| KvGroup { window: *window, states: vec![] }).collect();
    Scheduler::new(Pages::new(&groups, |_| n_pages), limits)
}

fn limits(chunk: usize, n_sequences: usize) -> Limits {
    let tokens = chunk + n_sequences - 1;
    Limits { chunk, tokens, n_sequences, queue: 100, between_tokens: BOUND, score_rows: 16 }
}

fn sequence(id: u64, len: usize) -> Sequence<()> {
    // No two begin alike.
    let tokens = (0..len as u32).map(|i| i + 1000 * id as u32).collect();
    Sequence {
        id,
        tokens,
        prompt_len: len,
        soft: vec![],
        blocks: Blocks::default(),
        scope: 0,
        towers: vec![],
        data: (),
        held: Held::default(),
        reused: None,
        scores: Scores::None,
        scored: 0,
    }
}

/// Does what was planned: everything is written, and whoever asks gets a token.
fn run(scheduler: &mut Scheduler<()>) -> Vec<(u64, usize)> {
    let parts = scheduler.parts().to_vec();
    for part in &parts {
        scheduler.wrote(part.id, part.len);
        if part.asks {
            scheduler.get_mut(part.id).unwrap().tokens.push(7);
        }
    }
    parts.iter().map(|part| (part.id, part.len)).collect()
}

/// The next step, which is a call of `forward`.
fn step(scheduler: &mut Scheduler<()>) -> Vec<(u64, usize)> {
    assert_eq!(scheduler.plan(), Work::Forward);
    run(scheduler)
}

#[test]
fn answers_come_first_and_prompts_take_turns() {
    let mut s = scheduler(&[None], 64, limits(16, 4));
    s.submit(sequence(1, 5)).unwrap();
    assert_eq!(step(&mut s), [(1, 5)]);
    s.submit(sequence(2, 100)).unwrap();
    s.submit(sequence(3, 20)).unwrap();
    s.submit(sequence(4, 100)).unwrap();
    // 19 tokens at most: one of the answer, a chunk of one prompt, and what is left of another.
    assert_eq!(step(&mut s), [(1, 1), (2, 16), (3, 2)]);
    assert_eq!(step(&mut s), [(1, 1), (3, 16), (4, 2)]);
    assert_eq!(step(&mut s), [(1, 1), (4, 16), (2, 2)]);
    // The third has two tokens left, and is an answer after them.
    assert_eq!(step(&mut s), [(1, 1), (2, 16), (3, 2)]);
    assert_eq!(step(&mut s), [(1, 1), (3, 1), (4, 16), (2, 1)]);
}

#[test]
fn prompts_are_cut_to_the_time_that_answers_leave_them() {
    let mut s = scheduler(&[None], 64, limits(512, 2));
    // A millisecond a token, and ten for the step.
    for tokens in [1, 100, 200] {
        s.cost.note(tokens, Duration::from_millis(10 + tokens as u64));
    }
    s.submit(sequence(1, 512)).unwrap();
    assert_eq!(step(&mut s), [(1, 512)], "nobody waits for a token");
    s.submit(sequence(2, 2000)).unwrap();
    let parts = step(&mut s);
    assert_eq!(parts[0], (1, 1));
    assert!((80..=90).contains(&parts[1].1), "{parts:?}");
    // However slow a token is, a prompt goes on.
    (0..450).for_each(|i| s.cost.note(1 + i % 9, Duration::from_secs(1 + i as u64 % 9)));
    assert_eq!(step(&mut s), [(1, 1), (2, 1)]);
}

#[test]
fn the_newest_gives_way_and_comes_back() {
    let mut s = scheduler(&[None], 4, limits(128, 4));
    for id in 1..=2 {
        s.submit(sequence(id, 200)).unwrap();
    }
    // Two pages each, and then the first needs a third.
    for _ in 0..50 {
        step(&mut s);
    }
    assert_eq!((s.n_preempted(), s.n_waiting()), (0, 0));
    while s.n_preempted() == 0 {
        step(&mut s);
    }
    assert_eq!((s.running().len(), s.n_waiting()), (1, 1));
    assert_eq!(s.running()[0].id, 1);
    let tokens = s.iter().find(|s| s.id == 2).unwrap().tokens.clone();
    assert!(tokens.len() > 250, "its answer so far is kept");
    // It runs again once there is room, and before those that came later.
    s.submit(sequence(3, 10)).unwrap();
    s.remove(1, None);
    let parts = step(&mut s);
    let mut ids: Vec<u64> = parts.iter().map(|part| part.0).collect();
    ids.sort_unstable();
    assert_eq!(ids, [2, 3]);
    assert!(s.get(2).unwrap().tokens.starts_with(&tokens));
}

#[test]
fn all_come_to_an_end_with_pages_for_one() {
    for windows in [&[None][..], &[None, Some(100)], &[Some(50), Some(200)]] {
        let mut s = scheduler(windows, 4, limits(100, 8));
        for id in 1..=20 {
            s.submit(sequence(id, 50 + 20 * id as usize)).unwrap();
        }
        let mut left = 20;
        for _ in 0..20_000 {
            let planned = s.plan();
            assert_eq!(planned, Work::Forward, "{left} are left");
            run(&mut s);
            let done: Vec<u64> =
                s.running().iter().filter(|s| s.tokens.len() >= 500).map(|s| s.id).collect();
            for id in done {
                s.remove(id, None);
                left -= 1;
            }
            if left == 0 {
                break;
            }
        }
        assert_eq!((left, s.len()), (0, 0));
        s.pages.forget();
        assert!(s.pages.n_free().iter().all(|n| *n == 4));
    }
}

#[test]
fn a_prefix_is_waited_for_while_another_writes_it() {
    let mut s = scheduler(&[None], 64, limits(128, 4));
    let long = sequence(1, 600);
    let mut same = sequence(2, 600);
    same.tokens.clone_from(&long.tokens);
    same.tokens[500] = 3;
    s.submit(long).unwrap();
    s.submit(same).unwrap();
    s.submit(sequence(3, 10)).unwrap();
    assert_eq!(step(&mut s), [(1, 128), (3, 3)]);
    // 500 tokens are common.
    let mut began = None;
    for i in 0..20 {
        step(&mut s);
        began = began.or_else(|| s.get(2).map(|s| (i, s.reused)));
    }
    let (_, reused) = began.unwrap();
    assert_eq!(reused, Some(500));
}

#[test]
fn towers_are_steps_of_their_own_and_take_turns() {
    let mut s = scheduler(&[None], 64, limits(64, 4));
    s.submit(sequence(1, 5)).unwrap();
    step(&mut s);
    let mut image = sequence(2, 200);
    let tower = |start: usize| Tower { range: start..start + 40, ready: false };
    image.towers = vec![tower(20), tower(70)];
    s.submit(image).unwrap();
    let mut works = vec![];
    for _ in 0..8 {
        let work = s.plan();
        if let Work::Tower { id, tower } = work {
            s.get_mut(id).unwrap().towers[tower].ready = true;
        } else {
            // Nothing of an image is run before its tower.
            for part in s.parts() {
                let sequence = s.get(part.id).unwrap();
                let end = part.start + part.len;
                let missing = |t: &Tower| !t.ready && t.range.start < end;
                assert!(!sequence.towers.iter().any(missing));
            }
            run(&mut s);
        }
        works.push(matches!(work, Work::Tower { .. }));
    }
    assert_eq!(works.iter().filter(|is_tower| **is_tower).count(), 2);
    assert!(!works.windows(2).any(|pair| pair == [true, true]), "{works:?}");
}

#[test]
fn a_queue_holds_so_many() {
    let mut s = scheduler(&[None], 64, Limits { queue: 2, ..limits(16, 1) });
    for id in 1..=3 {
        s.submit(sequence(id, 5)).unwrap();
    }
    let refused = s.submit(sequence(4, 5)).unwrap_err();
    assert_eq!(refused.id, 4);
    step(&mut s);
    assert_eq!((s.running().len(), s.n_waiting()), (1, 2));
    assert!(s.submit(sequence(5, 5)).is_err());
    s.remove(2, None);
    s.submit(sequence(6, 5)).unwrap();
}
