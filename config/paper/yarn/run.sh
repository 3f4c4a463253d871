#!/bin/sh
# PI and YaRN beside our own models, in an hour or two on two cores: trains eight, tunes each of them
# four times, and tests extensions of them. The same command goes on after a stop:
# sh config/paper/yarn/run.sh
set -e
place=${1:-out/paper-yarn} lengths=--eval_lengths=128,256,320,512,1024 runs="" tuned=""
python ablate.py config/paper/yarn/scaled.py --out_dir="$place"
for seed in 1 2 3 4 5 6 7 8; do
    run=$(ls -d out/rope-books-L128-s$seed-?????? | head -1) runs="$runs $run"
    for tune in pi/2 ntk/2 yarn/2 pi/4; do
        name=${tune%/*} factor=${tune#*/} folder="$place/$name-$factor-s$seed" tuned="$tuned $folder"
        python train.py config/extend/tune.py "--extend=$name(factor=$factor)" --init_from="$run" --seed=$seed \
            --dtype=bfloat16 --block_size=$((128 * factor)) --batch_size=$((16 / factor)) $lengths --out_dir="$folder"
    done
done
python evaluate.py $runs pi ntk yarn $lengths --dtype=bfloat16 --out="$place/extend.png"
python report.py $runs $tuned $lengths --out="$place/tuned.png"
