#!/bin/bash
# Install the distribution's packages that the testbed and the demo need. Starts no service and enables none.
set -eu
# (libpmix-dev: `srun --mpi=pmix` of Debian's Slurm looks for libpmix.so, which the library's own package lacks)
need=(slurmctld slurmd slurm-client slurmdbd munge mariadb-server iproute2 util-linux procps python3-venv gcc jargon-text
  libopenmpi-dev openmpi-bin libpmix-dev shellcheck)
declare -A program=([slurmctld]=slurmctld [slurmd]=slurmd [slurm-client]=srun [slurmdbd]=slurmdbd [munge]=munged
  [mariadb-server]=mariadbd [iproute2]=ip [util-linux]=nsenter [procps]=ps [gcc]=gcc [openmpi-bin]=mpirun
  [libopenmpi-dev]=mpicc [shellcheck]=shellcheck)
export PATH=$PATH:/usr/sbin:/sbin

missing=()
for package in "${need[@]}"; do
  if [ -n "${program[$package]:-}" ] && command -v "${program[$package]}" >/dev/null 2>&1; then continue; fi
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' && continue
  missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

how="apt-get update && apt-get install --no-install-recommends ${missing[*]}"
if ! command -v apt-get >/dev/null 2>&1; then
  echo "error: these programs are missing and this is not Debian or Ubuntu: ${missing[*]}" >&2
  echo "  fix: install Slurm (slurmctld, slurmd, slurmdbd, client commands), MUNGE and MariaDB by your package manager" >&2
  exit 2
fi
if [ "$(id -u)" != 0 ]; then
  echo "error: packages are missing and only root can install them: ${missing[*]}" >&2
  echo "  fix: sudo sh -c '$how'" >&2
  exit 2
fi

# A policy that forbids starting services, for as long as this takes; one that exists already is left alone.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
  trap 'rm -f "$policy"' EXIT
fi
echo "installing: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
# Debian enables the services of the packages it installs; those that came with this run are switched off again.
for package in "${missing[@]}"; do
  for unit in $(dpkg-query -L "$package" 2>/dev/null | sed -n 's|.*/systemd/system/\([^/]*\.service\)$|\1|p'); do
    if command -v deb-systemd-helper >/dev/null 2>&1; then deb-systemd-helper disable "$unit" >/dev/null; fi
  done
  for script in $(dpkg-query -L "$package" 2>/dev/null | sed -n 's|^/etc/init.d/||p'); do
    update-rc.d "$script" disable >/dev/null
  done
done
