#!/bin/sh
# The guardian: ends a group of processes when the owner of the group has ended (see process.rs). It runs as the argument of `sh
# -c`.
group=$1 folder=$2 stay=
end() {
  trap '' TERM INT HUP
  for signal in TERM KILL; do
    kill "-$signal" "-$group" 2>/dev/null
    turns=0
    while kill -0 "-$group" 2>/dev/null && [ "$turns" -lt 20 ]; do sleep 0.1; turns=$((turns + 1)); done
  done
  turns=0
  until rm -rf -- "$folder" 2>/dev/null || [ "$turns" -ge 20 ]; do sleep 0.1; turns=$((turns + 1)); done
  exit 0
}
trap end TERM INT HUP
while read -r word; do if [ "$word" = stay ]; then stay=1; fi; done
if [ -n "$stay" ]; then
  while [ -d "$folder" ] && [ ! -e "$folder/down" ]; do sleep 0.2; done
fi
end
