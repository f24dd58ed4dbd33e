-- Take the lease of one trajectory, or say why not.
--
-- KEYS[1] traj:{id}  KEYS[2] leases  KEYS[3] delayed
-- ARGV[1] id  ARGV[2] attempt in the message  ARGV[3] owner  ARGV[4] lease, s  ARGV[5] prefix
-- Returns {verdict, epoch, attempt, deaths, job, started, attempts}, verdict being
-- run | final | cancelled | stale_attempt | busy | unknown; all but `run` stand alone.
-- An expired lease is `busy` too: only the sweep takes a job back, so that deaths count.
local t = redis.call('TIME')
local now = tonumber(t[1]) + tonumber(t[2]) / 1e6
local f = redis.call('HMGET', KEYS[1], 'state', 'attempt', 'job')
local state, attempt, job = f[1], f[2], f[3]
if not state then return {'unknown'} end
if state == 'final' or state == 'cancelled' then return {state} end
if tonumber(ARGV[2]) < tonumber(attempt) then return {'stale_attempt'} end
if state == 'running' then return {'busy'} end
local expires = string.format('%.6f', now + tonumber(ARGV[4]))
local epoch = redis.call('HINCRBY', KEYS[1], 'epoch', 1)
redis.call('HSET', KEYS[1], 'state', 'running', 'owner', ARGV[3])
redis.call('HSETNX', KEYS[1], 'started', string.format('%.6f', now))
redis.call('ZADD', KEYS[2], expires, ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[1])
local run = string.match(ARGV[1], '^(.*)%.[^.]*%.[^.]*$')
redis.call('HINCRBY', ARGV[5] .. 'run:' .. run, 'running', 1)
local g = redis.call('HMGET', KEYS[1], 'deaths', 'started', 'attempts')
return {'run', epoch, tonumber(attempt), tonumber(g[1] or 0), job, g[2], g[3] or ''}
