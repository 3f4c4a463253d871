#!/bin/sh
# PI and YaRN (claims.toml) beside our own models, in an hour or two on two cores: trains eight,
# tunes each of them four times, tests extensions of them, and ends with the papers' table above ours
# and a verdict on each claim. The same command goes on after a stop:
# sh config/paper/yarn/run.sh
set -e
place=${1:-results/paper/yarn} lengths=--eval_lengths=128,256,320,512,1024 runs="" tuned=""
python ablate.py config/paper/yarn/scaled.py --ablate_dir="$place"
for seed in 1 2 3 4 5 6 7 8; do
    run="out/rope-books-L128-s$seed-n_embd=128" runs="$runs $run"
    for tune in pi/2 ntk/2 yarn/2 pi/4; do
        name=${tune%/*} factor=${tune#*/} folder="$run-$name-$factor" tuned="$tuned,$folder"
        python train.py config/extend/tune.py "--extend=$name(factor=$factor)" --init_from="$run" --seed=$seed \
            --dataset=books --dtype=bfloat16 --block_size=$((128 * factor)) --batch_size=$((16 / factor)) \
            $lengths --out_dir="$folder"
    done
done
python extend.py $runs pi ntk yarn --compare="${tuned#,}" $lengths --dtype=bfloat16 --out="$place/extend" \
    --paper=config/paper/yarn/claims.toml --format=json
