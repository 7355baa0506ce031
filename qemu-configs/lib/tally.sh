# Counting checks: one line each, and the sum.
# shellcheck shell=bash

passed=0 failed=0 skipped=0
# What a failed check has to say.
reason=

# check TEXT COMMAND...: one check. The command says in `reason` why it failed, and does not end the script.
check() {
    local text=$1 start status=0
    start=$(now_us)
    shift
    reason=
    "$@" || status=$?
    progress_end
    if ((status == 0)); then
        result ok "$text ($(since "$start"))"
    else
        result 'not ok' "$text ($(since "$start"))"
        [[ -z $reason ]] || printf '%s\n' "${reason%$'\n'}" | head -n 20 | sed 's/^/#   /'
    fi
}

# result ok|not\ ok TEXT: counts and prints one line.
result() {
    if [[ $1 == ok ]]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    printf '%s %d - %s\n' "$1" $((passed + failed)) "$2"
}

# tally_tap TEXT OUTPUT: counts every line of a TAP stream. One that stops before its plan is a failure of its own.
tally_tap() {
    local text=$1 line seen=0 plan=-1 explain=no
    while IFS= read -r line; do
        case $line in
            1..*) plan=${line#1..} plan=${plan%% *} ;;
            'ok '*'# SKIP'* | 'ok '*'# skip'*)
                explain=no seen=$((seen + 1)) skipped=$((skipped + 1))
                printf 'skip - %s: %s\n' "$text" "$(tap_title "${line#ok }")"
                ;;
            'ok '*) explain=no seen=$((seen + 1)) && result ok "$text: $(tap_title "${line#ok }")" ;;
            'not ok '*) explain=yes seen=$((seen + 1)) && result 'not ok' "$text: $(tap_title "${line#not ok }")" ;;
            '  ---' | '  ...') ;;
            '  '*) [[ $explain == no ]] || printf '# %s\n' "$line" ;;
        esac
    done <<<"$2"
    ((seen == plan)) || result 'not ok' "$text: $seen results, $plan planned"
}

# A TAP line's own number would confuse beside ours.
tap_title() { sed -E 's/^[0-9]+ *(- *)?//' <<<"$1"; }
