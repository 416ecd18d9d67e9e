{% macro cdc_changes(plan, decision, held) %}
  {% set segment, target, facts = plan.segments[-1], decision.target, decision.news.facts %}
  {% set window = {'inside': 'commit_lsn >= ' ~ target.lsn, 'key': segment.key} %}
  {# The log is read once; its new events are read for the ranges, for the held rows and for the fold. #}
  {% do cdc_keep(cdc_kept(this, 'new', plan.relid), 'select commit_lsn, ordinal, end_lsn, op, old_kind, new, old, unchanged ' ~ cdc_of_segment(plan, window)) %}
  {% do window.update({'kept': cdc_kept(this, 'new', plan.relid)}) %}
  {% set by_attnum = {} %}{% for column in plan.columns %}{% do by_attnum.update({column.attnum: column}) %}{% endfor %}
  {% set ranges, ctes = cdc_key_ranges(plan, window, by_attnum), [] %}
  {% if held is not none %}
    {# Only the target's rows whose keys occur in the new events. #}
    {% set cells, same = [], [] %}
    {% for attnum in range(1, (plan.columns | map(attribute='attnum') | max) + 1) %}
      {% do cells.append((cdc_text_of(by_attnum[attnum].lake, by_attnum[attnum], 't.') | trim)
          if attnum in by_attnum and (attnum in facts.toast or attnum in segment.key) else 'cast(null as string)') %}
    {% endfor %}
    {% for k in segment.key %}{% do same.append(cdc_same_key(by_attnum[k], 'x.k' ~ loop.index)) %}{% endfor %}
    {% do ctes.append('i0 as (select array(' ~ cells | join(', ') ~ ') as new, t._cdc_from_lsn as end_lsn from (select * from ' ~ this
        ~ ' version as of ' ~ target.snapshot ~ ' t where (' ~ held ~ ') and ' ~ ranges ~ ') t left semi join ('
        ~ cdc_window_keys(plan, window) ~ ') x on ' ~ same | join(' and ') ~ ')') %}
  {% endif %}
  {% do ctes.append(cdc_keyed(plan, 0, window, plan.columns, facts, 'i0' if held is not none else none)) %}
  {% if facts.chained %}
    {% do ctes.append(cdc_resolved(plan, 0, cdc_links(plan, 0, ctes | join(',\n'), plan.columns, facts), plan.columns, facts)) %}
  {% endif %}
  {% set match, keys, meta = [ranges], [], {} %}
  {% for k in segment.key %}
    {% do match.append(cdc_same_key(by_attnum[k], 's._cdc_k' ~ loop.index)) %}
    {% do keys.append('k' ~ loop.index ~ ' as _cdc_k' ~ loop.index) %}
    {% do meta.update({'_cdc_k' ~ loop.index: '_cdc_k' ~ loop.index}) %}
  {% endfor %}
  {% set cells = [] %}
  {% for column in plan.columns %}{% do cells.append(cdc_carried(column, facts) ~ ' as s' ~ column.attnum) %}{% endfor %}
  {% do return({
      'ctes': ctes | join(',\n'), 'cells': (cells + keys) | join(', '), 'match': match | join(' and '), 'meta': meta}) %}
{% endmacro %}
