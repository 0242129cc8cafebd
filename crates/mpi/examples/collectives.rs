//! Every collective on the processes that mpiexec has started, against what they should give; then their speed.
use std::path::Path;
use std::time::Instant;

use meshloom_mpi::Communicator;

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|four| f32::from_ne_bytes(four.try_into().expect("four"))).collect()
}

fn add(sum: &mut [u8], next: &[u8]) {
    for (sum, next) in sum.chunks_exact_mut(4).zip(next.chunks_exact(4)) {
        let both = [&*sum, next].map(|four| f32::from_ne_bytes(four.try_into().expect("four")));
        sum.copy_from_slice(&(both[0] + both[1]).to_ne_bytes());
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let library = std::env::args().nth(1).expect("a library");
    let world = Communicator::world(Path::new(&library))?;
    let (rank, size) = (world.rank(), world.size());
    let own = |at: usize| (100 * rank + at) as f32;
    let of = |rank: usize, at: usize| (100 * rank + at) as f32;
    let mut gathered = vec![0; 4 * 3 * size];
    world.all_gather(&bytes(&[own(0), own(1), own(2)]), &mut gathered)?;
    assert_eq!(floats(&gathered), (0..size).flat_map(|rank| (0..3).map(move |at| of(rank, at))).collect::<Vec<_>>());
    let input: Vec<f32> = (0..2 * size).map(own).collect();
    let mut exchanged = vec![0; 8 * size];
    world.all_to_all(&bytes(&input), &mut exchanged)?;
    let expected: Vec<f32> = (0..size).flat_map(|other| (0..2).map(move |at| of(other, 2 * rank + at))).collect();
    assert_eq!(floats(&exchanged), expected);
    let sum = |at: usize| (0..size).map(|rank| of(rank, at)).sum::<f32>();
    let (mut scattered, mut scratch) = (vec![0; 8], Vec::new());
    world.reduce_scatter(&bytes(&input), &mut scattered, &mut scratch, add)?;
    assert_eq!(floats(&scattered), [sum(2 * rank), sum(2 * rank + 1)]);
    let odd: Vec<f32> = (0..7).map(own).collect();
    let (mut reduced, mut both) = (vec![0; 28], [Vec::new(), Vec::new()]);
    world.all_reduce(&bytes(&odd), &mut reduced, 4, &mut both, add)?;
    assert_eq!(floats(&reduced), (0..7).map(sum).collect::<Vec<_>>());
    let mut moved = vec![1; 8];
    let (to, from) = ((rank + 1 < size).then_some(rank + 1), rank.checked_sub(1));
    world.duplicate()?.permute(&bytes(&[own(0), own(1)]), &mut moved, to, from)?;
    assert_eq!(floats(&moved), from.map_or([0.0; 2], |from| [of(from, 0), of(from, 1)]));
    let half = world.split((rank % 2) as u16, rank as u16)?;
    assert_eq!((half.size(), half.rank()), ((size + 1 - rank % 2) / 2, rank / 2));
    assert!(world.all_gather(&[0; 4], &mut [0; 3]).is_err());
    let large: Vec<u8> = bytes(&vec![1.0; 1 << 19]);
    let mut out = vec![0; large.len()];
    for round in 0..6 {
        let start = Instant::now();
        world.all_reduce(&large, &mut out, 4, &mut both, add)?;
        if round == 5 && rank == 0 {
            println!("{size} processes: all collectives are right; all-reduce of 2 MiB: {:?}", start.elapsed());
        }
    }
    assert!(floats(&out).iter().all(|&value| value == size as f32));
    world.barrier()?;
    Ok(())
}
