{#- Row versions from the log. Everything here makes SQL text; `plan` comes from cdc_plan.

Images stay arrays of PostgreSQL text, indexed by attnum - 1, until the last step. A change becomes one or two effects
(put or remove of a key); the order of effects is (commit_lsn, ordinal), never time.
-#}

{#- Rows of a table without columns are told apart by nothing: one cell that is always NULL stands for them. -#}
{%- macro cdc_or_none(columns) -%}
{%- do return(columns or [{'attnum': 0}]) -%}
{%- endmacro -%}

{#- One cell of an image. An image shorter than attnum was made before the column was added. -#}
{%- macro cdc_cell(image, column) -%}
{%- if column.attnum == 0 -%}cast(null as string)
{%- elif not column.get('has_missing') -%}get({{ image }}, {{ column.attnum - 1 }})
{%- else -%}
case when size({{ image }}) >= {{ column.attnum }} then {{ image }}[{{ column.attnum - 1 }}] else {{ cdc_missing(column) }} end
{%- endif -%}
{%- endmacro -%}

{%- macro cdc_missing(column) -%}
{{ cdc_literal(column.missing if column.get('has_missing') else none) }}
{%- endmacro -%}

{#- Row events of a segment: those after its low position and below its high one. -#}
{% macro cdc_segment_filter(plan, segment) -%}
{%- set p = plan.position -%}
relid = {{ plan.relid }} and kind = 'row' and generation = {{ p.generation }} and batch_id <= {{ p.batch }} and commit_lsn < {{ p.upto }}
    and (commit_lsn > {{ segment.low.commit }} or (commit_lsn = {{ segment.low.commit }} and ordinal > {{ segment.low.ordinal }}))
{%- if segment.high is defined %}
    and (commit_lsn < {{ segment.high.commit }} or (commit_lsn = {{ segment.high.commit }} and ordinal < {{ segment.high.ordinal }}))
{%- endif %}
{%- endmacro %}

{#- Facts about a segment's rows that decide how much work the fold has to do: one scan of small columns. -#}
{% macro cdc_segment_facts(plan, segment) %}
  {% set row = cdc_rows("select array_join(array_sort(array_distinct(flatten(collect_set(unchanged)))), ','),"
      ~ " count_if(op = 'U' and old_kind is not null),"
      ~ " count_if(op = 'U' and old_kind is not null and size(unchanged) > 0)"
      ~ " from " ~ cdc_events_at(plan.position) ~ " where " ~ cdc_segment_filter(plan, segment))[0] %}
  {% do return(cdc_facts(row[0], row[1], row[2])) %}
{% endmacro %}

{% macro cdc_facts(toast, moved, chained) %}
  {% set attnums = [] %}
  {% for text in (toast | string).split(',') if text and toast is not none %}
    {% if text | int not in attnums %}{% do attnums.append(text | int) %}{% endif %}
  {% endfor %}
  {% do return({'toast': attnums, 'moved': (moved or 0) | int > 0, 'chained': (chained or 0) | int > 0}) %}
{% endmacro %}

{%- macro cdc_part(image, attnum) -%}{{ image }}[{{ attnum - 1 }}]{%- endmacro -%}

{#- A key cell of a row from before the segment: its image may be older than the column. -#}
{%- macro cdc_held(attnum, columns) -%}
  {{ cdc_cell('new', columns | selectattr('attnum', 'equalto', attnum) | first) }}
{%- endmacro -%}

{#- A key cell of the new image; a toasted key that did not change is only in the old one. -#}
{%- macro cdc_fresh(attnum, facts) -%}
  {%- if attnum in facts.toast -%}
    if(coalesce(array_contains(unchanged, {{ attnum }}), false), {{ cdc_part('old', attnum) }}, {{ cdc_part('new', attnum) }})
  {%- else -%}{{ cdc_part('new', attnum) }}{%- endif -%}
{%- endmacro -%}

{#- CTEs of a keyed segment. `w<i>` has one row an effect, in its key's order: put, end_lsn, next_commit, next_end, the
image `new`, and for every column that was ever left out as unchanged TOAST its carried value `c<attnum>`.
`initial` names a relation (image array `new`, end_lsn) of the rows that exist before the segment. -#}
{% macro cdc_keyed(plan, i, segment, columns, facts, initial) -%}
{%- set key = segment.key -%}
{%- set toast = [] -%}
{%- for column in columns if column.attnum in facts.toast -%}{%- do toast.append(column) -%}{%- endfor -%}
e{{ i }} as (
  select commit_lsn, ordinal, end_lsn, op, old_kind, new, old, unchanged
  from {{ cdc_events_at(plan.position) }}
  where {{ cdc_segment_filter(plan, segment) }}
),
f{{ i }} as (
  select e.commit_lsn, e.ordinal, e.end_lsn, x.*, e.new, e.old, e.unchanged, e.old_kind
  from (select *, {% if facts.moved %}op = 'U' and old is not null and not ({% for k in key %}{{ cdc_part('old', k) }} <=> {{ cdc_fresh(k, facts) }}{{ ' and ' if not loop.last }}{% endfor %}){% else %}false{% endif %} as is_move from e{{ i }}) e
  lateral view inline(
    {%- if facts.moved %}if(is_move, array(
      named_struct('sub', 0, 'put', false, 'moved', true{% for k in key %}, 'k{{ loop.index }}', {{ cdc_part('old', k) }}{% endfor %}),
      named_struct('sub', 1, 'put', true, 'moved', true{% for k in key %}, 'k{{ loop.index }}', {{ cdc_fresh(k, facts) }}{% endfor %})), {% endif %}array(
      named_struct('sub', 1, 'put', op <> 'D', 'moved', false{% for k in key %}, 'k{{ loop.index }}', if(op = 'D', {{ cdc_part('old', k) }}, {{ cdc_fresh(k, facts) }}){% endfor %})
    ){% if facts.moved %}){% endif %}) x
  {%- if initial %}
  union all
  select cast(-1 as bigint), cast(0 as bigint), end_lsn, 1, true, false{% for k in key %}, {{ cdc_held(k, columns) }}{% endfor %},
    new, cast(null as array<string>), cast(null as array<int>), cast(null as string)
  from {{ initial }}
  {%- endif %}
),
{#- A move that leaves a value out points at the effect that removed its old key: (commit_lsn, ordinal). #}
{%- set partition -%}partition by {% for k in key %}k{{ loop.index }}{{ ', ' if not loop.last }}{% endfor %} order by commit_lsn, ordinal, sub{%- endset %}
{{ 'v' if facts.chained else 'w' }}{{ i }} as (
  select *,
    lead(commit_lsn) over ({{ partition }}) as next_commit,
    lead(end_lsn) over ({{ partition }}) as next_end
    {%- for column in toast %},
    last_value(case when not put then null
      {%- if column.attnum in key %} when true then named_struct('v', {{ cdc_fresh(column.attnum, facts) }}, 'rc', cast(null as bigint), 'ro', cast(null as bigint))
      {%- else %} when not coalesce(array_contains(unchanged, {{ column.attnum }}), false)
        then named_struct('v', {{ cdc_cell('new', column) }}, 'rc', cast(null as bigint), 'ro', cast(null as bigint))
      when old_kind = 'O' then named_struct('v', {{ cdc_cell('old', column) }}, 'rc', cast(null as bigint), 'ro', cast(null as bigint))
      when moved then named_struct('v', cast(null as string), 'rc', commit_lsn, 'ro', ordinal)
      {%- endif %} end, true) over ({{ partition }} rows between unbounded preceding and current row) as c{{ column.attnum }}
    {%- endfor %}
  from f{{ i }}
)
{%- endmacro %}

{#- Follow the pointers of chained moves (1 -> 2 -> 3) by doubling, as cached views: as many rounds as
the logarithm of the longest chain. Each view stays: the next one is defined by it. -#}
{% macro cdc_links(plan, i, head, columns, facts) %}
  {% set name = 'cdc_links_' ~ this.schema ~ '_' ~ plan.relid ~ '_' ~ i ~ '_' %}
  {% set parts = [] %}
  {% for column in columns if column.attnum in facts.toast %}
    {% do parts.append("select commit_lsn, ordinal, " ~ column.attnum ~ " as attnum, c" ~ column.attnum ~ ".v as v, c" ~ column.attnum ~ ".rc as rc, c"
        ~ column.attnum ~ ".ro as ro from v" ~ i ~ " where moved and not put and array_contains(unchanged, " ~ column.attnum ~ ")") %}
  {% endfor %}
  {% set state = {'round': 0, 'open': 1} %}
  {% do cdc_keep(name ~ "0", "with " ~ head ~ " " ~ parts | join(" union all ")) %}
  {% for _ in range(64) if state.open %}
    {% do state.update({'open': cdc_rows("select count(*) from " ~ name ~ state.round ~ " where rc is not null")[0][0] | int}) %}
    {% if state.open %}
      {% set now, then = name ~ state.round, name ~ (state.round + 1) %}
      {% do cdc_keep(then, "select a.commit_lsn, a.ordinal, a.attnum, if(a.rc is null, a.v, b.v) as v, b.rc, b.ro from "
          ~ now ~ " a left join " ~ now ~ " b on a.rc = b.commit_lsn and a.ro = b.ordinal and a.attnum = b.attnum") %}
      {% do state.update({'round': state.round + 1}) %}
    {% endif %}
  {% endfor %}
  {% do return(name ~ state.round) %}
{% endmacro %}

{#- `w<i>` from `v<i>`: pointers replaced by what they lead to. -#}
{% macro cdc_resolved(plan, i, links, columns, facts) -%}
w{{ i }} as (
  select v.* except ({% for column in columns if column.attnum in facts.toast %}c{{ column.attnum }}{{ ', ' if not loop.last }}{% endfor %})
    {%- for column in columns if column.attnum in facts.toast %},
    if(c{{ column.attnum }}.rc is null, c{{ column.attnum }}, named_struct('v', l{{ column.attnum }}.v, 'rc', cast(null as bigint), 'ro', cast(null as bigint))) as c{{ column.attnum }}
    {%- endfor %}
  from v{{ i }} v
  {%- for column in columns if column.attnum in facts.toast %}
  left join {{ links }} l{{ column.attnum }} on l{{ column.attnum }}.attnum = {{ column.attnum }}
    and l{{ column.attnum }}.commit_lsn = v.c{{ column.attnum }}.rc and l{{ column.attnum }}.ordinal = v.c{{ column.attnum }}.ro
  {%- endfor %}
)
{%- endmacro %}

{%- macro cdc_carried(column, facts) -%}
{%- if column.attnum in facts.toast -%}c{{ column.attnum }}.v{%- else -%}{{ cdc_cell('new', column) }}{%- endif -%}
{%- endmacro -%}

{#- Clearings (baselines and truncates) inside a segment, as an array literal of (commit_lsn, ordinal, end_lsn). -#}
{% macro cdc_clears(plan, segment) -%}
array({% set inside = [] %}
{%- for clear in plan.clears if (clear.commit, clear.ordinal) > (segment.low.commit, segment.low.ordinal)
      and (segment.high is not defined or (clear.commit, clear.ordinal) < (segment.high.commit, segment.high.ordinal)) -%}
{%- do inside.append("named_struct('c', " ~ clear.commit ~ "L, 'o', " ~ clear.ordinal ~ "L, 'e', " ~ clear.end ~ "L)") -%}
{%- endfor -%}{{ inside | join(', ') }})
{%- endmacro %}

{#- End LSN of the first clearing after an effect, or NULL. -#}
{%- macro cdc_cleared(clears) -%}
{%- if clears == 'array()' -%}cast(null as bigint)
{%- else -%}get(filter({{ clears }}, t -> t.c > commit_lsn or (t.c = commit_lsn and t.o > ordinal)), 0).e
{%- endif -%}
{%- endmacro -%}

{#- CTE `r<i>` of a keyed segment: row versions with cells s<attnum>, from_lsn, to_lsn (NULL: open at the segment's end). -#}
{% macro cdc_keyed_versions(plan, i, segment, columns, facts, whole) -%}
{%- set clears = cdc_clears(plan, segment) | trim -%}
r{{ i }} as (
  select * from (
    select {% for column in columns %}{{ cdc_carried(column, facts) }} as s{{ column.attnum }}, {% endfor %}end_lsn as from_lsn,
      {% if whole %}least(next_end, {{ cdc_cleared(clears) }}){% else %}cast(null as bigint){% endif %} as to_lsn
    from w{{ i }}
    where put and {% if whole %}(next_commit is null or next_commit <> commit_lsn){% else %}next_commit is null{% endif %}
  ) where to_lsn is null or from_lsn < to_lsn
)
{%- endmacro %}

{#- CTE `r<i>` of a bag: equal images are copies of each other; copy n is open while the count is at least n. -#}
{% macro cdc_bag_versions(plan, i, segment, columns, initial, whole) -%}
{%- set clears = cdc_clears(plan, segment) | trim -%}
{%- set cells -%}{% for column in columns %}s{{ column.attnum }}{{ ', ' if not loop.last }}{% endfor %}{%- endset -%}
e{{ i }} as (
  select commit_lsn, ordinal, end_lsn, x.delta{% for column in columns %},
    case when x.delta < 0 or coalesce(array_contains(unchanged, {{ column.attnum }}), false) then {{ cdc_cell('old', column) }} else {{ cdc_cell('new', column) }} end as s{{ column.attnum }}{% endfor %}
  from (
    select commit_lsn, ordinal, end_lsn, op, new, old, unchanged from {{ cdc_events_at(plan.position) }}
    where {{ cdc_segment_filter(plan, segment) }}
  ) lateral view explode(case when op = 'U' then array(-1, 1) when op = 'D' then array(-1) else array(1) end) x as delta
  {%- if initial %}
  union all
  select cast(-1 as bigint), cast(0 as bigint), end_lsn, 1{% for column in columns %}, {{ cdc_cell('new', column) }}{% endfor %} from {{ initial }}
  {%- endif %}
),
{%- if not whole %}
r{{ i }} as (
  select {{ cells }}, from_lsn, cast(null as bigint) as to_lsn from (
    select {{ cells }}, sum(delta) as n, max(case when delta > 0 then end_lsn end) as from_lsn from e{{ i }} group by {{ cells }}
  ) lateral view explode(case when n > 0 then sequence(1, n) when n < 0 then {{ cdc_refuse(plan, false) }} end) x as copy
)
{%- else %}
d{{ i }} as (
  select {{ cells }}, epoch, commit_lsn, max(cleared) as cleared, sum(delta) as d, max(end_lsn) as end_lsn
  from (select *, {{ cdc_cleared(clears) }} as cleared, {% if clears == 'array()' %}0{% else %}size(filter({{ clears }}, t -> t.c < commit_lsn or (t.c = commit_lsn and t.o <= ordinal))){% endif %} as epoch from e{{ i }})
  group by {{ cells }}, epoch, commit_lsn
),
n{{ i }} as (
  select *, sum(d) over (partition by {{ cells }}, epoch order by commit_lsn) as n from d{{ i }} where d <> 0
),
r{{ i }} as (
  select {{ cells }}, from_lsn, to_lsn from (
    select {{ cells }}, d, end_lsn as from_lsn,
      least(lead(end_lsn) over (partition by {{ cells }}, epoch, copy order by commit_lsn), cleared) as to_lsn
    from n{{ i }} lateral view explode(case when n < 0 or n - d < 0 then {{ cdc_refuse(plan, true) }}
      when d > 0 then sequence(n - d + 1, n) else sequence(n + 1, n - d) end) x as copy
  ) where d > 0 and (to_lsn is null or from_lsn < to_lsn)
)
{%- endif %}
{%- endmacro %}

{#- No copies where the log removes a row that it never put. It must not be so, unless a gap makes the table stale:
then it is red by name already, and must not stop the others. -#}
{%- macro cdc_refuse(plan, whole) -%}
{%- set stale = [] -%}
{%- for gap in plan.gaps if whole or (gap.commit, gap.ordinal) > (plan.base.commit, plan.base.ordinal) -%}{%- do stale.append(gap) -%}{%- endfor -%}
{%- if stale -%}cast(array() as array<bigint>)
{%- else -%}array(cast(raise_error('table {{ plan.relid }}: the log removes a row that it never put; run cdc repair') as bigint))
{%- endif -%}
{%- endmacro -%}

{#- All CTEs, segment by segment; the last one's `r<n>` are the rows of the target's columns. Returns the SQL of
rows (s<attnum>.., from_lsn, to_lsn). `whole`: all versions since the first baseline, else those open at upto. -#}
{% macro cdc_fold(plan, whole=false) %}
  {% set ctes, results = [], [] %}
  {% set state = {'initial': none} %}
  {% for segment in plan.segments %}
    {% set i = loop.index0 %}
    {% set columns = cdc_or_none(plan.columns if loop.last else segment.version.table.columns) %}
    {% if segment.keyed %}
      {% set facts = cdc_segment_facts(plan, segment) %}
      {% do ctes.append(cdc_keyed(plan, i, segment, columns, facts, state.initial)) %}
      {% if facts.chained %}
        {% do ctes.append(cdc_resolved(plan, i, cdc_links(plan, i, ctes | join(',\n'), columns, facts), columns, facts)) %}
      {% endif %}
      {% do ctes.append(cdc_keyed_versions(plan, i, segment, columns, facts, whole)) %}
    {% else %}
      {% do ctes.append(cdc_bag_versions(plan, i, segment, columns, state.initial, whole)) %}
    {% endif %}
    {% if not loop.last %}
      {# Rows open here live on in the next segment, as images that are complete at this point. #}
      {% set present = {} %}
      {% for column in columns %}{% do present.update({column.attnum: true}) %}{% endfor %}
      {% set cells = [] %}
      {% for attnum in range(1, (columns | map(attribute='attnum') | max) + 1) %}
        {% do cells.append('s' ~ attnum if attnum in present else 'cast(null as string)') %}
      {% endfor %}
      {% do ctes.append('i' ~ (i + 1) ~ ' as (select cast(array(' ~ cells | join(', ') ~ ') as array<string>) as new, from_lsn as end_lsn from r' ~ i ~ ' where to_lsn is null)') %}
      {% do state.update({'initial': 'i' ~ (i + 1)}) %}
      {% if whole %}
        {% set targets = [] %}
        {% for column in cdc_or_none(plan.columns) %}
          {% do targets.append(('s' ~ column.attnum if column.attnum in present else cdc_missing(column)) ~ ' as s' ~ column.attnum) %}
        {% endfor %}
        {% do results.append('select ' ~ targets | join(', ') ~ ', from_lsn, to_lsn from r' ~ i ~ ' where to_lsn is not null') %}
      {% endif %}
    {% else %}
      {% do results.append('select * from r' ~ i) %}
    {% endif %}
  {% endfor %}
  {% do return('with ' ~ ctes | join(',\n') ~ '\n' ~ results | join('\nunion all\n')) %}
{% endmacro %}

{#- Typed columns from rows of cells: values that their type carries exactly, the others' text in `_cdc_text`. -#}
{% macro cdc_project(plan, rows, meta) -%}
{%- set typed = [] -%}
{%- for column in plan.columns if (cdc_kind(column) | trim) != 'string' -%}{%- do typed.append(column) -%}{%- endfor -%}
select {% for column in plan.columns %}t{{ column.attnum }} as {{ cdc_quote(column.lake) }},
  {% endfor %}
  {%- for name, expression in meta.items() %}{{ expression }} as {{ name }},
  {% endfor %}
  {%- if typed -%}
  case when {% for column in typed %}(t{{ column.attnum }} is null and s{{ column.attnum }} is not null){{ ' or ' if not loop.last }}{% endfor %}
    then map_filter(map({% for column in typed %}{{ cdc_literal(column.lake) }}, if(t{{ column.attnum }} is null, s{{ column.attnum }}, null){{ ', ' if not loop.last }}{% endfor %}), (name, text) -> text is not null)
    end as _cdc_text
  {%- else -%}cast(null as map<string, string>) as _cdc_text{%- endif %}
from (
  select *{% for column in plan.columns %}, {{ cdc_typed('s' ~ column.attnum, column) }} as t{{ column.attnum }}{% endfor %}
  from (
    select * {%- if plan.columns | selectattr('relabel') | list %} except ({% for column in plan.columns if column.relabel %}s{{ column.attnum }}{{ ', ' if not loop.last }}{% endfor %})
      {%- for column in plan.columns if column.relabel %}, {{ cdc_relabelled(column) }} as s{{ column.attnum }}{% endfor %}{% endif %}
    from ({{ rows }})
  )
)
{%- endmacro %}

{#- An enum cell by the label's present name. Which names a value had depends on the baseline that the row came after. -#}
{%- macro cdc_relabelled(column) -%}
case {% for era in column.relabel %}when from_lsn >= {{ era.from }} then {% if era.labels %}case s{{ column.attnum }}
{%- for old, new in era.labels.items() %} when {{ cdc_literal(old) }} then {{ cdc_literal(new) }}{% endfor %} else s{{ column.attnum }} end
{%- else %}s{{ column.attnum }}{% endif %} {% endfor %}else s{{ column.attnum }} end
{%- endmacro -%}
