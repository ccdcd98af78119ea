"""The scripts of the engine, each atomic, with one key: the prefix of a caller's keys, or the key of a row.

A reasoning is a row `r<id>`, its sealed text; the id is the seal, which is equal for equal texts: writing one again
changes nothing. Each key of a turn is a sorted set `k<key>` of links, the oldest first: the id and a tag, 16 bytes
each, by which the proxies know that the key leads to this text. There are at most 16, as in SQLite. A row that is not
used expires.
"""

from deepseek_cursor_proxy.features.redis.client import Script

# ARGV: seconds to keep, keys. Reply, flat: number of the key, link, text; the text is empty if it was sent before.
FIND_REASONINGS = Script("""
local ttl, reply, sent = tonumber(ARGV[1]), {}, {}
local function use(key)
  if redis.call('TTL', key) < ttl - math.min(86400, ttl / 4) then redis.call('EXPIRE', key, ttl) end
end
for at = 2, #ARGV do
  local key = KEYS[1] .. 'k' .. ARGV[at]
  local links = redis.call('ZRANGE', key, 0, -1)
  if #links > 0 then use(key) end
  for _, link in ipairs(links) do
    local id = link:sub(1, 16)
    local row = KEYS[1] .. 'r' .. id
    local text = sent[id] and '' or redis.call('GET', row)
    if text then
      if not sent[id] then use(row) end
      sent[id] = true
      reply[#reply + 1] = at - 2
      reply[#reply + 1] = link
      reply[#reply + 1] = text
    end
  end
end
return reply
""")

# ARGV: seconds to keep, entries. An entry: sealed text, number of keys, keys, each with its tag.
RECORD_REASONINGS = Script("""
local ttl, at = ARGV[1], 2
while at <= #ARGV do
  local text, last = ARGV[at], at + 1 + 2 * ARGV[at + 1]
  local id = text:sub(1, 16)
  redis.call('SET', KEYS[1] .. 'r' .. id, text, 'EX', ttl)
  for i = at + 2, last, 2 do
    local key = KEYS[1] .. 'k' .. ARGV[i]
    local count = #redis.call('ZRANGE', key, 0, -1)
    if count < 16 then redis.call('ZADD', key, 'NX', count, id .. ARGV[i + 1]) end
    redis.call('EXPIRE', key, ttl)
  end
  at = last + 1
end
return 1
""")

# A response is a hash: status, created_at, sealed body (b), input (i) and events (e), and until when it is leased (u).
# A deleted one keeps its status alone, so that a proxy that has a copy in its file knows.
# ARGV: put, update or delete; seconds to keep; then seconds of the lease (0: none), status, created_at, b, i, e.
CHANGE_RESPONSE = Script("""
local is_there = redis.call('HEXISTS', KEYS[1], 'b')
if ARGV[1] == 'delete' then
  redis.call('DEL', KEYS[1])
  redis.call('HSET', KEYS[1], 'status', 'deleted')
  redis.call('EXPIRE', KEYS[1], ARGV[2])
  return is_there
end
if is_there == 0 and ARGV[1] == 'update' then return 0 end
redis.call('HSET', KEYS[1], 'status', ARGV[4], 'b', ARGV[6], 'i', ARGV[7], 'e', ARGV[8])
redis.call('HSETNX', KEYS[1], 'created_at', ARGV[5])
if is_there == 0 then redis.call('EXPIRE', KEYS[1], ARGV[2]) end
if ARGV[3] == '0' then
  redis.call('HDEL', KEYS[1], 'u')
else
  redis.call('HSET', KEYS[1], 'u', redis.call('TIME')[1] + ARGV[3])
end
return 1
""")

# ARGV: 1 with events. Reply: status, created_at, b, i, e, and 1 if its lease has expired; empty if there is none.
FIND_RESPONSE = Script("""
local row = redis.call('HMGET', KEYS[1], 'status', 'created_at', 'b', 'i', ARGV[1] == '1' and 'e' or '', 'u')
if not row[1] then return {} end
local has_expired = row[6] and tonumber(row[6]) < tonumber(redis.call('TIME')[1])
return {row[1], row[2] or '', row[3] or '', row[4] or '', row[5] or '', has_expired and 1 or 0}
""")

# ARGV: seconds of the lease. One that has expired stays so: other proxies have shown the response as failed.
RENEW_RESPONSE = Script("""
local lease, now = tonumber(redis.call('HGET', KEYS[1], 'u') or 0), redis.call('TIME')[1]
if lease < tonumber(now) then return 0 end
redis.call('HSET', KEYS[1], 'u', now + ARGV[1])
return 1
""")

# A counter has what is spent (c<counter>) and a hash of what is reserved (h<counter>): by request, its amount and until
# when it counts. The counters of a request are a set (q<request>). Times are those of the instances. A counter that has
# less than an instance knows, or no amount, gets what that knows, and a reservation that is none goes: the engine may
# have lost its data, and others may write to it. The last number of each reply is how many counters were raised.
_LIMITS = """
local base, raised = KEYS[1], 0
local function amount_of(text)
  local amount = type(text) == 'string' and text:match('^%d+$') and tonumber(text)
  return amount and amount < 2 ^ 53 and amount
end
local function reserved(counter, now)
  local key, sum = base .. 'h' .. counter, 0
  local all = redis.pcall('HGETALL', key)
  if all.err then
    redis.call('DEL', key)
    return 0
  end
  for i = 1, #all, 2 do
    local amount, expires_at = all[i + 1]:match('^(%d+) (%d+%.%d+)$')
    if amount_of(amount) and tonumber(expires_at) > now and tonumber(expires_at) < now + 3600 then
      sum = sum + amount
    else
      redis.call('HDEL', key, all[i])
    end
  end
  return sum
end
local function spent(counter, known, seconds)
  local amount = amount_of(redis.pcall('GET', base .. 'c' .. counter) or '0')
  if amount and amount >= tonumber(known) then return amount end
  redis.call('SET', base .. 'c' .. counter, known, 'EX', seconds)
  raised = raised + 1
  return tonumber(known)
end
local function hold(request, counter, amount, expires_at)
  redis.call('HSET', base .. 'h' .. counter, request, amount .. ' ' .. string.format('%.6f', expires_at))
  redis.call('SADD', base .. 'q' .. request, counter)
  redis.call('EXPIRE', base .. 'h' .. counter, 3600)
  redis.call('EXPIRE', base .. 'q' .. request, 3600)
end
local function held(request, counter, now)
  local amount, expires_at = (redis.call('HGET', base .. 'h' .. counter, request) or ''):match('^(%S+) (%S+)$')
  return amount and tonumber(expires_at) > now and amount
end
"""

# ARGV: request, now, seconds of the lease; then of each hold its counter, what is known of it, the seconds to keep it,
# amount and most. Reply: the number of the hold that has no room, or 0, and what is spent and reserved.
RESERVE_LIMITS = Script(
    _LIMITS
    + """
local request, now, expires_at = ARGV[1], tonumber(ARGV[2]), ARGV[2] + ARGV[3]
for _, counter in ipairs(redis.call('SMEMBERS', base .. 'q' .. request)) do
  if held(request, counter, now) then return {0, 0, 0, raised} end
end
for at = 4, #ARGV, 5 do
  local gone, held = spent(ARGV[at], ARGV[at + 1], ARGV[at + 2]), reserved(ARGV[at], now)
  local used = gone + held
  if used > 0 and used + ARGV[at + 3] > tonumber(ARGV[at + 4]) then return {(at + 1) / 5, gone, held, raised} end
end
for at = 4, #ARGV, 5 do hold(request, ARGV[at], ARGV[at + 3], expires_at) end
return {0, 0, 0, raised}
"""
)

# ARGV: request, seconds for which a second settlement is recognised; then counter, what is known of it, the seconds to
# keep it, and amount.
# Reply: what each counter has spent; 0 if the request was settled before.
SETTLE_LIMITS = Script(
    _LIMITS
    + """
local request, totals = ARGV[1], {}
if not redis.call('SET', base .. 'd' .. request, '', 'EX', ARGV[2], 'NX') then return 0 end
for _, counter in ipairs(redis.call('SMEMBERS', base .. 'q' .. request)) do
  redis.call('HDEL', base .. 'h' .. counter, request)
end
redis.call('DEL', base .. 'q' .. request)
for at = 3, #ARGV, 4 do
  spent(ARGV[at], ARGV[at + 1], ARGV[at + 2])
  totals[#totals + 1] = redis.call('INCRBY', base .. 'c' .. ARGV[at], ARGV[at + 3])
  redis.call('EXPIRE', base .. 'c' .. ARGV[at], ARGV[at + 2])
end
totals[#totals + 1] = raised
return totals
"""
)

# ARGV: now, seconds of the lease, requests.
RENEW_LIMITS = Script(
    _LIMITS
    + """
local now = tonumber(ARGV[1])
for at = 3, #ARGV do
  for _, counter in ipairs(redis.call('SMEMBERS', base .. 'q' .. ARGV[at])) do
    local amount = held(ARGV[at], counter, now)
    if amount then hold(ARGV[at], counter, amount, now + ARGV[2]) end
  end
end
return {raised}
"""
)

# ARGV: now; then counter, what is known of it, the seconds to keep it. Reply, flat: what each has spent and reserved.
USED_LIMITS = Script(
    _LIMITS
    + """
local reply = {}
for at = 2, #ARGV, 3 do
  reply[#reply + 1] = spent(ARGV[at], ARGV[at + 1], ARGV[at + 2])
  reply[#reply + 1] = reserved(ARGV[at], tonumber(ARGV[1]))
end
reply[#reply + 1] = raised
return reply
"""
)

# By the name under which the backlog keeps them.
WRITES = {"record_reasonings": RECORD_REASONINGS, "change_response": CHANGE_RESPONSE, "settle_limits": SETTLE_LIMITS}
NAMES = {script: name for name, script in WRITES.items()}
