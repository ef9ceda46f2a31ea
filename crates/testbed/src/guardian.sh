#!/bin/sh
# The guardian: ends a group of processes when the owner of the group has ended (see process.rs). It runs as the argument of `sh
# -c`. No member gets time to end by itself, because no state outlives the group. After SIGTERM, Tekton's controller would keep
# all processors busy for more than a second.
group=$1 folder=$2 stay=
end() {
  trap '' TERM INT HUP
  kill -KILL "-$group" 2>/dev/null
  turns=0
  while kill -0 "-$group" 2>/dev/null && [ "$turns" -lt 100 ]; do sleep 0.02; turns=$((turns + 1)); done
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
