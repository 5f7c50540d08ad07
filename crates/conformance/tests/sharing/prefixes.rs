//! What was run before is not run again, and what is found is as good as run.

use lapidary_backend::PAGE;
use lapidary_runner::Request;
use lapidary_text::Prompt;

use crate::ask::{Fresh, STRANGE, answer, request, runner, runner_of, text, together};
use crate::engines::{On, Room, Use};

/// Sequences with one prefix run it once.
pub fn shared(on: &On) {
    let (n, own, new) = (on.sizes.prefix, on.sizes.own, on.sizes.answer);
    let context = n + 2 * PAGE;
    let pages = Some(((n + 8 * 2 * PAGE) / PAGE) as u32);
    let room = Room { context, chunk: 512, sequences: 8, pages };
    let (mut runner, meter) = runner(on, room);
    let prefix = text(n, 0);
    let requests: Vec<Request> = (0..8)
        .map(|i| {
            let own = text(own, 10 + i);
            request(&[prefix.as_slice(), &own].concat(), new, u64::from(i))
        })
        .collect();
    let answers = together(&mut runner, &requests);
    // The prefix once, and of each sequence its own tokens and those of its answer.
    let run = meter.take_tokens();
    assert!(run >= n && run <= n + 8 * (own + new), "{run} tokens");
    assert_eq!(meter.stale(), 0);
    let mut fresh = Fresh::new(on, context);
    for (i, got) in answers.iter().enumerate().step_by(on.sizes.check_each) {
        fresh.check(requests[i].clone(), got, &format!("sequence {i}"));
    }
    // Those that come later find it as well.
    let late = request(&[prefix.as_slice(), &text(own, 30)].concat(), new, 9);
    let got = answer(&mut runner, late.clone());
    let run = meter.take_tokens();
    assert!(run < own + new, "{run} tokens");
    fresh.check(late, &got, "a late one");
}

/// An answer that is asked for again runs next to nothing of the history.
pub fn regenerated(on: &On) {
    let context = on.sizes.history + 8 * PAGE;
    let (mut runner, meter) = runner(on, Room::one(context));
    let mut fresh = Fresh::new(on, context);
    let history = text(on.sizes.history, 0);
    let new = on.sizes.answer;
    let mut last = vec![];
    for (turn, new) in [new / 2, new, 5 * new, new].into_iter().enumerate() {
        let asked = request(&history, new, turn as u64);
        let got = answer(&mut runner, asked.clone());
        let run = meter.take_tokens() + 1 - new;
        let most = if turn == 0 { on.sizes.history } else { PAGE };
        assert!(run <= most, "{run} tokens of the history for answer {turn}");
        if (turn + 1) % on.sizes.check_each.min(4) == 0 {
            fresh.check(asked, &got, &format!("answer {turn}"));
        }
        last = got.tokens;
    }
    // The last answer can be gone on from.
    let asked = request(&[history.as_slice(), &last, &text(3, 4)].concat(), 2, 0);
    let got = answer(&mut runner, asked.clone());
    let run = meter.take_tokens();
    // The last token of the answer was drawn and not run; then three new ones, and the first of the
    // two that were asked for.
    assert_eq!(run, 5);
    fresh.check(asked, &got, "the next turn");
    assert_eq!(meter.stale(), 0);
}

/// A turn whose thinking was dropped from the history runs what comes after the cut.
pub fn thinking(on: &On) {
    let sizes = on.sizes;
    let context = sizes.question + sizes.thinking + sizes.after + 2 * PAGE;
    let (mut runner, meter) = runner(on, Room::one(context));
    let question = text(sizes.question, 0);
    let first = answer(&mut runner, request(&question, sizes.thinking + sizes.after, 1));
    meter.take_tokens();
    let said = &first.tokens[sizes.thinking..];
    let next = text(50, 3);
    let asked = request(&[question.as_slice(), said, &next].concat(), 5, 2);
    let got = answer(&mut runner, asked.clone());
    let run = meter.take_tokens();
    // What comes after the cut, and of the new answer all but the last.
    let most = said.len() + next.len() + 4;
    assert!(run <= most, "{run} tokens, not {most} at most");
    Fresh::new(on, context).check(asked, &got, "after the cut");
    assert_eq!(meter.stale(), 0);
}

/// A fork at any position equals a fresh run, also beside the sequence that it parts from.
pub fn forks(on: &On) {
    const CONTEXT: usize = 600;
    let trunk = text(on.sizes.trunk, 0);
    let fork = |at: usize| [&trunk[..at], &[STRANGE]].concat();
    let room = Room { sequences: 2, chunk: 64, ..Room::one(CONTEXT) };
    let (mut runner, meter) = runner(on, room);
    let mut fresh = Fresh::new(on, CONTEXT);
    answer(&mut runner, request(&trunk, 5, 0));
    for at in on.sizes.forks {
        let asked = request(&fork(*at), 3, 1);
        let got = answer(&mut runner, asked.clone());
        fresh.check(asked, &got, &format!("at {at}"));
    }
    let requests = [request(&trunk, 20, 2), request(&fork(trunk.len() - 10), 10, 3)];
    for (i, got) in together(&mut runner, &requests).iter().enumerate() {
        fresh.check(requests[i].clone(), got, &format!("branch {i}"));
    }
    assert!(meter.counts().copied > on.sizes.forks.len() / 2, "pages were not shared");
    assert_eq!(meter.stale(), 0);
}

/// Pages that one process saved serve another.
pub fn saved(on: &On) {
    const CONTEXT: usize = 700;
    let mut fresh = Fresh::new(on, CONTEXT);
    for n in on.sizes.saved {
        let prefix = text(*n, 0);
        let mut file = vec![];
        {
            let (mut runner, _) = runner(on, Room::one(CONTEXT));
            answer(&mut runner, request(&prefix, 1, 0));
            let prompt = Prompt::from(prefix.clone());
            assert_eq!(runner.save_prefix(&prompt, 0, &mut file).unwrap(), *n);
        }
        let (mut runner, meter) = runner_of(on, Room::one(CONTEXT), Use::Restarted);
        assert_eq!(runner.restore_prefix(&mut file.as_slice(), 0).unwrap(), *n);
        let asked = request(&[prefix.as_slice(), &text(20, 3)].concat(), 10, 1);
        let got = answer(&mut runner, asked.clone());
        assert_eq!(meter.take_tokens(), 20 + 9, "after {n} tokens that were restored");
        fresh.check(asked, &got, &format!("after {n} tokens"));
        assert_eq!(meter.stale(), 0);
    }
}
