# Writes one file: staged content, path, permissions, owner, append or replace.
set -e
write() {
    mkdir -p "$(dirname "$2")"
    if [ "$5" = append ]; then
        cat "$1" >> "$2"
    else
        cat "$1" > "$2"
    fi
    chmod "$3" "$2"
    chown "$4" "$2"
}
