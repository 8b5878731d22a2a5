// Runs a command with the address of a server as its last argument.

import { spawnSync } from 'node:child_process'
import { Lockkeeper } from 'lockkeeper'

const zk = await Lockkeeper.start()
const { status } = spawnSync(process.execPath, [...process.argv.slice(2), zk.connectString], { stdio: 'inherit' })
await zk.stop()
process.exitCode = status ?? 1
