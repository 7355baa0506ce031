# Makes figures out of samples: a value is the median of the rounds, a ratio the median of the rounds' ratios. The first file says which
# figures there are (see figure in figures.sh), the second has a line for each sample: its name and value.

BEGIN {
    FS = "\t"
    printf "%-44s %10s %-9s %8s  %-14s met\n", "name", "value", "unit", "ratio", "target"
    printf "{\n  \"machine\": { \"processor\": \"%s\", \"processors\": %d, \"kernel\": \"%s\" },\n", processor, processors, kernel >json
    printf "  \"figures\": [" >json
}

FILENAME == "-" {
    name[++figures] = $1; samples[figures] = $2; unit[figures] = $3; limit[figures] = $4; against[figures] = $5; target[figures] = $6
    next
}

{
    split($0, word, " ")
    sample[word[1], ++rounds[word[1]]] = word[2]
}

END {
    for (i = 1; i <= figures; i++) show(i)
    printf "\n  ]\n}\n" >json
}

function show(i,    count, values, ratios, value, ratio, met, j) {
    printf "%s\n    ", (i == 1 ? "" : ",") >json
    if (left_out != "" && samples[i] ~ /-rxe$/) {
        printf "%-44s %s\n", name[i], left_out
        printf "{ \"name\": \"%s\", \"missing\": \"%s\" }", name[i], left_out >json
        return
    }
    count = rounds[samples[i]]
    for (j = 1; j <= count; j++) {
        values[j] = sample[samples[i], j]
        if (limit[i] != "" && left_out == "") ratios[j] = values[j] / sample[limit[i], j]
    }
    value = median(values, count)
    ratio = 1 in ratios ? median(ratios, count) : ""
    met = verdict(ratio, target[i])
    printf "%-44s %10s %-9s %8s  %-14s %s\n", name[i], significant(value), unit[i], ratio == "" ? "-" : significant(ratio),
        target[i] == "" ? "-" : target[i], met == "" ? "-" : met
    printf "{ \"name\": \"%s\", \"value\": %.6g, \"unit\": \"%s\", \"ratio\": %s, \"against\": %s, \"target\": \"%s\", \"met\": %s }",
        name[i], value, unit[i], (ratio == "" ? "null" : sprintf("%.6g", ratio)), (ratio == "" ? "null" : "\"" against[i] "\""),
        (target[i] == "" ? "-" : target[i]), (met == "" ? "null" : met == "met" ? "true" : "false") >json
}

# A target is ratio>=NUMBER or ratio<=NUMBER.
function verdict(ratio, target,    number) {
    if (ratio == "" || target == "") return ""
    number = substr(target, 8) + 0
    if (target ~ />=/) return ratio >= number ? "met" : "missed"
    return ratio <= number ? "met" : "missed"
}

function median(values, count,    i, j, held) {
    for (i = 2; i <= count; i++) {
        held = values[i] + 0
        for (j = i - 1; j >= 1 && values[j] + 0 > held; j--) values[j + 1] = values[j]
        values[j + 1] = held
    }
    return (values[int((count + 1) / 2)] + values[int((count + 2) / 2)]) / 2
}

# Four digits, or all of those before the point.
function significant(value,    digits, rest) {
    for (rest = value < 0 ? -value : value; rest >= 10; rest /= 10) digits--
    if (rest > 0) for (; rest < 1; rest *= 10) digits++
    digits += 3
    if (value == 0 || digits < 0) digits = 0
    return sprintf("%.*f", digits > 6 ? 6 : digits, value)
}
