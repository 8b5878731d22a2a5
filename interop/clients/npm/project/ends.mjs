// Starts a server, prints its process, and ends without stopping it.

import { Lockkeeper } from 'lockkeeper'

console.log((await Lockkeeper.start()).pid)
