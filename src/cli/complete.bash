# Bash splits words at = and :, which addresses and the keys of -o hold: they are joined for the program, and what it answers is cut to
# the part that bash replaces.
_resyncfs() {
    local IFS=$'\013' space=true at word joins='' words=()
    compopt +o nospace 2> /dev/null && space=false
    for ((at = 0; at <= COMP_CWORD; at++)); do
        word=${COMP_WORDS[at]}
        ((at < COMP_CWORD)) || [[ $word =~ ^[=:]+$ ]] || word=$2
        if [[ $joins || $word =~ ^[=:]+$ ]]; then words[-1]+=$word; else words+=("$word"); fi
        joins=; [[ ! $word =~ ^[=:]+$ ]] || joins=yes
    done
    COMPREPLY=($(_CLAP_IFS=$IFS _CLAP_COMPLETE_INDEX=$((${#words[@]} - 1)) _CLAP_COMPLETE_COMP_TYPE=$COMP_TYPE \
        _CLAP_COMPLETE_SPACE=$space RESYNCFS_COMPLETE=bash resyncfs -- "${words[@]}")) || unset COMPREPLY
    word=$2; [[ ! $word =~ ^[=:]+$ ]] || word=
    COMPREPLY=("${COMPREPLY[@]#"${words[-1]%"$word"}"}")
    [[ $space == true || ! ${COMPREPLY-} =~ [=/:,]$ ]] || compopt -o nospace
}
complete -o nospace -o bashdefault -o nosort -F _resyncfs resyncfs
